//! The ports of hardware-reduced ACPI: sleep control, sleep status, reset.

use std::fmt;
use std::sync::Arc;

use super::bus::PortDevice;
use super::shutdown::{Shutdown, ShutdownSink};

/// `SLEEP_CONTROL_REG` of the FADT; the device's first port.
pub const ACPI_SLEEP_CONTROL_PORT: u16 = 0x600;
/// `SLEEP_STATUS_REG` of the FADT.
pub const ACPI_SLEEP_STATUS_PORT: u16 = ACPI_SLEEP_CONTROL_PORT + STATUS;
/// `RESET_REG` of the FADT.
pub const ACPI_RESET_PORT: u16 = ACPI_SLEEP_CONTROL_PORT + RESET;
/// `RESET_VALUE` of the FADT.
pub const ACPI_RESET_VALUE: u8 = 1;
/// The sleep type of S5, "soft off", as in `\_S5`.
pub const ACPI_S5_SLEEP_TYPE: u8 = 5;

const CONTROL: u16 = 0;
const STATUS: u16 = 1;
const RESET: u16 = 2;
/// Sleep control: bits 4–2 are the sleep type, bit 5 enters the sleep state.
const SLEEP_MASK: u8 = 0b11_1100;
const SLEEP_S5: u8 = 1 << 5 | ACPI_S5_SLEEP_TYPE << 2;

/// The three ports.
pub struct AcpiPm {
    sink: Arc<dyn ShutdownSink>,
}

impl AcpiPm {
    /// Number of ports.
    pub const PORTS: u16 = 3;

    /// Reports a power-off or reset to `sink`.
    #[must_use]
    pub fn new(sink: Arc<dyn ShutdownSink>) -> Self {
        Self { sink }
    }
}

impl PortDevice for AcpiPm {
    /// Nothing is ever pending: the machine has not woken from any sleep.
    fn read(&self, _offset: u16) -> u8 {
        0
    }

    fn write(&self, offset: u16, value: u8) {
        match offset {
            CONTROL if value & SLEEP_MASK == SLEEP_S5 => self.sink.shutdown(Shutdown::PowerOff),
            RESET if value == ACPI_RESET_VALUE => self.sink.shutdown(Shutdown::Reset),
            _ => {}
        }
    }
}

impl fmt::Debug for AcpiPm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpiPm").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
