//! What a run is connected to.

use std::io::Write;
use std::sync::Arc;

use control::Incoming;
use events::EventSink;

use super::crash_dump::CrashDump;
use crate::stop::StopSignal;

/// What a run is connected to.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Receives events.
    pub(crate) sink: Arc<dyn EventSink>,
    /// Receives what the guest writes to its serial line.
    pub(crate) console: Console,
    /// Ends the run.
    pub(crate) stop: StopSignal,
    /// The clients of the control socket.
    pub(crate) clients: Option<Incoming>,
    /// Receives the dump of the guest, if the guest crashes.
    pub(crate) dump: Option<CrashDump>,
}

/// Takes the guest's console.
pub(crate) struct Console(pub(crate) Box<dyn Write + Send>);

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Console")
    }
}
