use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::devices::recording::{MsiCall, Recorder};
use crate::devices::{ACPI_RESET_PORT, CMOS_DATA_PORT, MsiMessage, Shutdown};

struct Rig {
    platform: Platform,
    msi: Arc<Recorder<MsiCall>>,
    asked: Arc<Mutex<Vec<Shutdown>>>,
}

fn rig(debug_exit: bool) -> Rig {
    let msi = Arc::new(Recorder::new());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&asked);
    let platform = Platform::new(PlatformConfig {
        msi: msi.clone(),
        shutdown: Arc::new(move |request| requests.lock().unwrap().push(request)),
        console: Box::new(io::sink()),
        ram_bytes: 256 << 20,
        debug_exit,
    });
    Rig {
        platform: platform.unwrap(),
        msi,
        asked,
    }
}

#[test]
fn every_way_to_end_requests_its_shutdown() {
    let rig = rig(true);
    let writes = [
        (ACPI_SLEEP_CONTROL_PORT, 0x34),
        (ACPI_RESET_PORT, 1),
        (I8042_COMMAND_PORT, 0xfe),
        (DEBUG_EXIT_PORT, 42),
    ];
    for (port, value) in writes {
        rig.platform.ports.write(port, 1, &[value]);
    }
    let ends = [
        Shutdown::PowerOff,
        Shutdown::Reset,
        Shutdown::Reset,
        Shutdown::Code(42),
    ];
    assert_eq!(*rig.asked.lock().unwrap(), ends);
}

#[test]
fn a_stock_guest_cannot_end_by_the_test_port() {
    let rig = rig(false);
    rig.platform.ports.write(DEBUG_EXIT_PORT, 1, &[42]);
    assert!(rig.asked.lock().unwrap().is_empty());
}

#[test]
fn input_comes_as_the_message_that_the_guest_chose() {
    let rig = rig(false);
    let register = IOAPIC_GPA.0;
    for (select, value) in [(0x19, 1 << 24), (0x18, 0x24_u32)] {
        assert!(rig.platform.mmio.write(register, &[select, 0, 0, 0]));
        assert!(
            rig.platform
                .mmio
                .write(register + 0x10, &value.to_le_bytes())
        );
    }
    rig.msi.take();
    rig.platform.ports.write(COM1_PORT + 1, 1, &[1]);
    assert_eq!(rig.platform.serial.enqueue(b"x"), 1);
    let message = MsiMessage {
        address: 0xfee0_1000,
        data: 0x24,
    };
    assert_eq!(rig.msi.take(), [MsiCall::Signal(message)]);
}

#[test]
fn the_clock_answers_and_the_ports_of_old_do_not() {
    let rig = rig(false);
    let read = |port| {
        let mut data = [0];
        rig.platform.ports.read(port, 1, &mut data);
        data[0]
    };
    rig.platform.ports.write(CMOS_INDEX_PORT, 1, &[0x0d]);
    assert_eq!(read(CMOS_DATA_PORT), 0x80);
    // PIC, PIT, the speaker's port, PCI.
    for port in [0x20, 0x21, 0xa1, 0x40, 0x43, 0x61, 0xcf8] {
        assert_eq!(read(port), 0xff, "port {port:#x}");
    }
}

proptest! {
    #[test]
    fn any_port_access_is_survived(
        accesses in prop::collection::vec(
            (any::<bool>(), any::<u16>(), 0_usize..9, prop::collection::vec(any::<u8>(), 0..17)),
            0..64,
        ),
    ) {
        let rig = rig(true);
        for (write, port, size, mut data) in accesses {
            // Every second port is COM1 or close to COM1.
            let port = if port % 2 == 0 { port } else { COM1_PORT - 8 + port % 16 };
            match write {
                true => rig.platform.ports.write(port, size, &data),
                false => rig.platform.ports.read(port, size, &mut data),
            }
        }
    }
}
