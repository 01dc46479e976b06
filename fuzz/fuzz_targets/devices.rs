//! Accesses of ports and of the memory of devices, as exits of vCPUs bring them.

#![cfg_attr(fuzzing, no_main)]

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::fuzz_target;
use vmm::boot::IOAPIC_GPA;
use vmm::devices::{
    ACPI_SLEEP_CONTROL_PORT, AcpiPm, CMOS_INDEX_PORT, CMOS_PORTS, COM_PORTS, COM1_PORT,
    DEBUG_EXIT_PORT, I8042_COMMAND_PORT, I8042_DATA_PORT, IOAPIC_BYTES, MsiMessage, MsiSink,
    Platform, PlatformConfig, Shutdown,
};

#[derive(Arbitrary, Debug)]
struct Case {
    /// Size of RAM in units of 16 MiB.
    ram: u16,
    is_test_guest: bool,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    PortRead(Port, Size, u8),
    PortWrite(Port, Size, Vec<u8>),
    MmioRead(Register, u8),
    MmioWrite(Register, Vec<u8>),
    /// A local APIC ends an interrupt.
    EndOfInterrupt(u8),
    /// Number of typed bytes.
    Input(u8),
}

#[derive(Arbitrary, Debug)]
enum Port {
    /// A port with a device, or beside a device.
    Known {
        device: u8,
        offset: i8,
    },
    Any(u16),
}

/// The target of an access to the IOAPIC.
#[derive(Arbitrary, Debug)]
enum Register {
    Select,
    Window,
    EndOfInterrupt,
    /// An address around the IOAPIC.
    Any(i16),
}

#[derive(Arbitrary, Debug)]
enum Size {
    One,
    Two,
    Four,
}

fuzz_target!(|case: Case| {
    let output = Arc::new(DeviceOutput::default());
    let requests = output.clone();
    let platform = Platform::new(PlatformConfig {
        msi: output.clone(),
        shutdown: Arc::new(move |request: Shutdown| requests.shutdown(request)),
        console: Box::new(Console(output.clone())),
        ram_bytes: u64::from(case.ram) << 24,
        debug_exit: case.is_test_guest,
    });
    let platform = platform.expect("devices");
    let mut written = 0;
    for step in case.steps {
        match step {
            Step::PortRead(port, size, count) => {
                let mut data = vec![0; size.bytes() * usize::from(count)];
                platform.ports.read(port.number(), size.bytes(), &mut data);
            }
            Step::PortWrite(port, size, data) => {
                written += data.len();
                platform.ports.write(port.number(), size.bytes(), &data);
            }
            Step::MmioRead(register, len) => {
                let mut data = vec![0; usize::from(len % 9)];
                let is_answered = platform.mmio.read(register.address(), &mut data);
                assert_eq!(is_answered, register.is_ioapic());
            }
            Step::MmioWrite(register, mut data) => {
                data.truncate(8);
                let is_taken = platform.mmio.write(register.address(), &data);
                assert_eq!(is_taken, register.is_ioapic());
            }
            Step::EndOfInterrupt(vector) => platform.ioapic.end_of_interrupt(vector),
            Step::Input(bytes) => {
                let room = platform.serial.room();
                let taken = platform.serial.enqueue(&vec![b'x'; usize::from(bytes)]);
                assert!(taken <= room, "{taken} bytes in a room of {room}");
            }
        }
    }
    output.check(written, case.is_test_guest);
    // Logs contain the debug output.
    let _ = format!("{platform:?}");
});

impl Register {
    fn offset(&self) -> i64 {
        match *self {
            Self::Select => 0x00,
            Self::Window => 0x10,
            Self::EndOfInterrupt => 0x40,
            Self::Any(offset) => offset.into(),
        }
    }

    fn address(&self) -> u64 {
        IOAPIC_GPA.0.wrapping_add_signed(self.offset())
    }

    fn is_ioapic(&self) -> bool {
        u64::try_from(self.offset()).is_ok_and(|offset| offset < IOAPIC_BYTES)
    }
}

impl Port {
    fn number(&self) -> u16 {
        let (device, offset) = match *self {
            Self::Known { device, offset } => (device, offset),
            Self::Any(port) => return port,
        };
        let devices = [
            (COM1_PORT, COM_PORTS.into()),
            (CMOS_INDEX_PORT, CMOS_PORTS.into()),
            (I8042_DATA_PORT, 1),
            (I8042_COMMAND_PORT, 1),
            (ACPI_SLEEP_CONTROL_PORT, AcpiPm::PORTS),
            (DEBUG_EXIT_PORT, 1),
        ];
        let (first, ports) = devices[usize::from(device) % devices.len()];
        // From `-(ports + 3)` to `ports + 3`: the device's ports and the ports around.
        let offset = i16::from(offset) % (ports.cast_signed() + 4);
        first.wrapping_add_signed(offset)
    }
}

impl Size {
    fn bytes(&self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
        }
    }
}

/// Output of the devices to the machine.
#[derive(Debug, Default)]
struct DeviceOutput {
    console_bytes: AtomicUsize,
    messages: Mutex<Vec<MsiMessage>>,
    requests: Mutex<Vec<Shutdown>>,
}

impl DeviceOutput {
    fn shutdown(&self, request: Shutdown) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push(request);
    }

    /// Checks the devices' output after `written` bytes of the guest to ports.
    fn check(&self, written: usize, is_test_guest: bool) {
        let bytes = self.console_bytes.load(Ordering::Relaxed);
        assert!(
            bytes <= written,
            "{bytes} bytes of {written} on the console"
        );
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(requests.len() <= written, "{requests:?} by {written} bytes");
        let has_code = requests
            .iter()
            .any(|request| matches!(request, Shutdown::Code(_)));
        assert!(is_test_guest || !has_code, "{requests:?}");
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        for message in &*messages {
            // Every other address would be a write to the guest's memory.
            assert_eq!(message.address >> 20, 0xfee, "{message:x?}");
        }
    }
}

impl MsiSink for DeviceOutput {
    fn signal(&self, address: u64, data: u32) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(MsiMessage { address, data });
    }

    fn level_route_changed(&self, _pin: u8, route: Option<MsiMessage>) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.extend(route);
    }
}

/// Counts the guest's bytes to COM1.
#[derive(Debug)]
struct Console(Arc<DeviceOutput>);

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .console_bytes
            .fetch_add(bytes.len(), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
