//! A run on this machine's KVM.

use std::io::Write;
use std::sync::Arc;

use probes::{EventSink, Summary};

use crate::config::RunConfig;
use crate::stop::StopSignal;

/// Why a run could not be started or brought to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunFailure {
    /// The engine is not part of this build.
    #[error("this build has no engine yet")]
    NotBuilt,
}

/// Boots the guest here and probes it until it ends, `stop` is requested, or its time is over.
///
/// `console` takes what the guest writes to its serial line; it blocks until the bytes are on their way. The summary
/// is returned, not sent to `sink`.
pub(crate) fn run_here(
    _config: &RunConfig,
    _sink: Arc<dyn EventSink>,
    _console: Box<dyn Write + Send>,
    _stop: StopSignal,
) -> Result<Summary, RunFailure> {
    Err(RunFailure::NotBuilt)
}
