//! A port with which a test guest ends the run and reports the result.

use std::fmt;
use std::sync::Arc;

use super::bus::PortDevice;
use super::shutdown::{Shutdown, ShutdownSink};

/// The port of QEMU's isa-debug-exit.
pub const DEBUG_EXIT_PORT: u16 = 0xf4;

/// Ends the run with the written byte. Unlike with QEMU, the byte is the code itself.
pub struct DebugExit {
    sink: Arc<dyn ShutdownSink>,
}

impl DebugExit {
    /// Reports the code to `sink`.
    #[must_use]
    pub fn new(sink: Arc<dyn ShutdownSink>) -> Self {
        Self { sink }
    }
}

impl PortDevice for DebugExit {
    fn read(&self, _offset: u16) -> u8 {
        u8::MAX
    }

    fn write(&self, _offset: u16, value: u8) {
        self.sink.shutdown(Shutdown::Code(value));
    }
}

impl fmt::Debug for DebugExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebugExit").finish_non_exhaustive()
    }
}
