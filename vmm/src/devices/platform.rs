//! The machine's devices, put together.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use thiserror::Error;

use super::acpi_pm::{ACPI_SLEEP_CONTROL_PORT, AcpiPm};
use super::bus::{BusError, MmioBus, PortBus};
use super::debug_exit::{DEBUG_EXIT_PORT, DebugExit};
use super::i8042::{I8042, I8042_COMMAND_PORT, I8042_DATA_PORT};
use super::ioapic::{IOAPIC_BYTES, Ioapic};
use super::irq::IoapicPin;
use super::msi::MsiSink;
use super::rtc::{CMOS_INDEX_PORT, CMOS_PORTS, Rtc};
use super::serial::{COM_PORTS, COM1_GSI, COM1_PORT, Serial};
use super::shutdown::ShutdownSink;
use crate::boot::{IOAPIC_GPA, low_ram_end};

/// Why the devices could not be put together.
#[derive(Debug, Error)]
pub enum PlatformError {
    /// The serial port needs an event descriptor.
    #[error("cannot create the serial port")]
    Serial(#[from] io::Error),
    /// Two devices want the same address.
    #[error(transparent)]
    Bus(#[from] BusError),
}

/// The connections of the devices to the machine.
pub struct PlatformConfig {
    /// Takes interrupts to the local APICs.
    pub msi: Arc<dyn MsiSink>,
    /// Receives the guest's requests to end the machine.
    pub shutdown: Arc<dyn ShutdownSink>,
    /// Takes the guest's output on COM1, byte by byte.
    pub console: Box<dyn Write + Send>,
    /// The size of the guest's RAM.
    pub ram_bytes: u64,
    /// Whether a test guest may end the run by port 0xf4.
    pub debug_exit: bool,
}

impl fmt::Debug for PlatformConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlatformConfig")
            .field("ram_bytes", &self.ram_bytes)
            .field("debug_exit", &self.debug_exit)
            .finish_non_exhaustive()
    }
}

/// The devices. vCPU threads share the platform and need no lock for the buses.
#[derive(Debug)]
pub struct Platform {
    /// Port space.
    pub ports: PortBus,
    /// Devices in guest-physical memory.
    pub mmio: MmioBus,
    /// The IOAPIC, for `KVM_EXIT_IOAPIC_EOI`.
    pub ioapic: Arc<Ioapic>,
    /// COM1, for its input.
    pub serial: Arc<Serial>,
}

impl Platform {
    /// Creates the devices and puts them on the buses.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn new(config: PlatformConfig) -> Result<Self, PlatformError> {
        let PlatformConfig {
            msi,
            shutdown,
            console,
            ram_bytes,
            debug_exit,
        } = config;
        let ioapic = Arc::new(Ioapic::new(msi));
        let com1_irq = Arc::new(IoapicPin::new(Arc::clone(&ioapic), COM1_GSI));
        let serial = Arc::new(Serial::new(com1_irq, console)?);
        let low_ram = low_ram_end(ram_bytes).0;
        let rtc = Rtc::new(low_ram, ram_bytes - low_ram, Arc::clone(&shutdown));

        let mut ports = PortBus::new();
        ports.insert(COM1_PORT, u16::from(COM_PORTS), serial.clone())?;
        ports.insert(CMOS_INDEX_PORT, u16::from(CMOS_PORTS), Arc::new(rtc))?;
        let i8042_data = I8042::data_port(Arc::clone(&shutdown));
        ports.insert(I8042_DATA_PORT, 1, Arc::new(i8042_data))?;
        let i8042_command = I8042::command_port(Arc::clone(&shutdown));
        ports.insert(I8042_COMMAND_PORT, 1, Arc::new(i8042_command))?;
        let acpi = AcpiPm::new(Arc::clone(&shutdown));
        ports.insert(ACPI_SLEEP_CONTROL_PORT, AcpiPm::PORTS, Arc::new(acpi))?;
        if debug_exit {
            ports.insert(DEBUG_EXIT_PORT, 1, Arc::new(DebugExit::new(shutdown)))?;
        }

        let mut mmio = MmioBus::new();
        mmio.insert(IOAPIC_GPA.0, IOAPIC_BYTES, ioapic.clone())?;
        Ok(Self {
            ports,
            mmio,
            ioapic,
            serial,
        })
    }
}

#[cfg(test)]
mod tests;
