//! Why a nested run has no result.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

use super::boot::BootError;
use super::inputs::InputsError;
use super::lines::LineError;
use super::protocol::{InnerFailure, Port};
use super::standstill;

/// The error of a nested run.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The outer Linux could not be put together.
    #[error(transparent)]
    Inputs(#[from] InputsError),
    /// QEMU could not be started.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// This process cannot start a thread.
    #[error("cannot start a thread for a port of the outer Linux")]
    Thread(#[source] io::Error),
    /// The run inside failed, with the given error.
    #[error(transparent)]
    Inner(#[from] InnerFailure),
    /// QEMU ended, and the run inside has not reported a reason.
    #[error("QEMU ended ({status}) before the nested run did{said}")]
    Ended {
        /// QEMU's exit status.
        status: String,
        /// The last output of QEMU and of the outer Linux.
        said: LastWords,
    },
    /// The outer Linux did not come up.
    #[error("the outer Linux has not started hyprobe after {} s, nor when it was booted before; is this host \
             overloaded?{said}\n{seen}", after.as_secs())]
    NotBooted {
        /// The duration of the last boot.
        after: Duration,
        /// The last output of QEMU and of the outer Linux.
        said: LastWords,
        /// The CPUs and threads of QEMU.
        seen: String,
    },
    /// The run did not end after a stop request.
    #[error("the nested run did not end when it was asked to, and was killed{said}\n{seen}")]
    NotStopped {
        /// The last output of QEMU and of the outer Linux.
        said: LastWords,
        /// The CPUs and threads of QEMU.
        seen: String,
    },
    /// QEMU did not work any more.
    #[error(
        "a CPU of QEMU used no processor time for {} s, so the run could not go on, and QEMU was killed: start the run again{said}\n{seen}",
        standstill::LIMIT.as_secs()
    )]
    StoodStill {
        /// The last output of QEMU and of the outer Linux.
        said: LastWords,
        /// The CPUs and threads of QEMU.
        seen: String,
    },
    /// A port's contents are damaged.
    #[error("the {} port of the outer Linux cannot be used{said}", port.name())]
    Port {
        /// The port.
        port: Port,
        /// The cause.
        source: LineError,
        /// The last output of QEMU and of the outer Linux.
        said: LastWords,
    },
    /// Some of the output is missing.
    #[error(
        "the nested run ended, but {events} bytes of its events and {console} bytes of its console never arrived"
    )]
    Incomplete {
        /// Bytes missing from the events.
        events: u64,
        /// Bytes missing from the console.
        console: u64,
    },
}

/// The last output of QEMU and of the outer Linux, as the end of an error message.
#[derive(Debug)]
pub struct LastWords(pub(super) String);

impl fmt::Display for LastWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("; it said nothing");
        }
        f.write_str("; its last words:")?;
        self.0
            .lines()
            .try_for_each(|line| write!(f, "\n  | {line}"))
    }
}
