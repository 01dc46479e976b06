//! The reset line of an i8042 keyboard controller; there is no keyboard.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use vm_superio::{I8042Device, Trigger};

use super::bus::PortDevice;
use super::shutdown::{Shutdown, ShutdownSink};

/// The data port.
pub const I8042_DATA_PORT: u16 = 0x60;
/// The command and status port.
///
/// The ports between the two belong to other devices (0x61 to the speaker), so the two ports go on
/// the bus one by one.
pub const I8042_COMMAND_PORT: u16 = 0x64;

/// An i8042 that knows one command: reset the CPU.
pub struct I8042 {
    device: Mutex<I8042Device<ResetLine>>,
    /// The port's offset in vm-superio's view of the device.
    offset: u8,
}

impl I8042 {
    /// The data port.
    #[must_use]
    pub fn data_port(sink: Arc<dyn ShutdownSink>) -> Self {
        Self::at(0, sink)
    }

    /// The command port, where 0xfe resets the CPU.
    #[must_use]
    pub fn command_port(sink: Arc<dyn ShutdownSink>) -> Self {
        Self::at(4, sink)
    }

    fn at(offset: u8, sink: Arc<dyn ShutdownSink>) -> Self {
        Self {
            device: Mutex::new(I8042Device::new(ResetLine(sink))),
            offset,
        }
    }
}

impl PortDevice for I8042 {
    /// Status: both buffers empty. Kernels wait for empty buffers before they send the reset command.
    fn read(&self, _offset: u16) -> u8 {
        self.device
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .read(self.offset)
    }

    fn write(&self, _offset: u16, value: u8) {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(()) = device.write(self.offset, value);
    }
}

impl fmt::Debug for I8042 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("I8042")
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

struct ResetLine(Arc<dyn ShutdownSink>);

impl Trigger for ResetLine {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.0.shutdown(Shutdown::Reset);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
