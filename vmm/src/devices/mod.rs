//! The devices of the machine, and the buses on which the guest reaches them.
//!
//! The machine is as small as a stock kernel allows: COM1, a CMOS clock, the reset line of an
//! i8042, three ACPI ports and an IOAPIC, but no PIC, no PIT and no PCI. The local APICs are in KVM
//! (split irqchip), all other devices are in the VMM. KVM itself therefore answers no port: a probe
//! may use any `out` and is certain of the exit.
//!
//! The vCPU threads share the devices. Each device has its own lock, held only while a register is
//! read or written and never while waiting for a vCPU. A device answers every access of the guest:
//! an invalid read returns ones, an invalid write is ignored.
//!
//! [`Platform`] puts the devices together. The machine handles the devices' requests through three
//! hooks: [`MsiSink`] delivers interrupts, [`ShutdownSink`] ends the run, and the console's output
//! goes to any [`std::io::Write`].

mod acpi_pm;
mod bus;
mod debug_exit;
mod i8042;
mod ioapic;
mod irq;
mod msi;
mod platform;
#[cfg(test)]
mod recording;
mod redirection;
mod rtc;
mod serial;
mod serial_input;
mod shutdown;

pub use acpi_pm::{
    ACPI_RESET_PORT, ACPI_RESET_VALUE, ACPI_S5_SLEEP_TYPE, ACPI_SLEEP_CONTROL_PORT,
    ACPI_SLEEP_STATUS_PORT, AcpiPm,
};
pub use bus::{BusError, MmioBus, MmioDevice, PortBus, PortDevice};
pub use debug_exit::{DEBUG_EXIT_PORT, DebugExit};
pub use i8042::{I8042, I8042_COMMAND_PORT, I8042_DATA_PORT};
pub use ioapic::{IOAPIC_BYTES, IOAPIC_PINS, Ioapic};
pub use irq::{IoapicPin, IrqLine};
pub use msi::{MsiMessage, MsiSink};
pub use platform::{Platform, PlatformConfig, PlatformError};
pub use rtc::{CMOS_DATA_PORT, CMOS_INDEX_PORT, CMOS_PORTS, Rtc};
pub use serial::{COM_PORTS, COM1_GSI, COM1_PORT, Serial};
pub use serial_input::SerialInput;
pub use shutdown::{Shutdown, ShutdownSink};
