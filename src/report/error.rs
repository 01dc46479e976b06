//! The errors of a run's output.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use files::CreateError;

/// The output of a run cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    /// A file for events or for the console cannot be made.
    #[error("cannot write to {path}")]
    Create {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: CreateError,
    },
    /// The host has no thread to give.
    #[error("cannot start the thread that writes events")]
    Thread(#[source] io::Error),
    /// The host has no thread to give.
    #[error("cannot start the thread that opens debug files of modules")]
    FilesThread(#[source] io::Error),
}

/// A stream that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to {stream}: {lost}: {error}")]
pub(crate) struct WriteFailure {
    /// The name of the stream.
    pub(crate) stream: String,
    /// The loss.
    pub(crate) lost: Lost,
    /// The system's answer.
    pub(crate) error: io::Error,
}

/// The loss of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Events, including the events that the queue refused, and bytes of all kinds.
    Events { events: u64, bytes: u64 },
    /// Bytes of the guest's console or of the summary.
    Bytes(u64),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Events { events, bytes } => {
                write!(f, "{events} events are lost, {bytes} bytes in all")
            }
            Self::Bytes(bytes) => write!(f, "{bytes} bytes are lost"),
        }
    }
}

/// The streams that failed; at least one.
#[derive(Debug)]
pub(crate) struct WriteFailures(pub(super) Vec<WriteFailure>);

impl fmt::Display for WriteFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failures: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&failures.join("; "))
    }
}

impl std::error::Error for WriteFailures {}

/// The output of a run is incomplete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// Streams failed.
    #[error(transparent)]
    Write(#[from] WriteFailures),
    /// The reader takes nothing.
    #[error(
        "the run has ended, but its output was not read for {} s: {events} events and what follows them are lost; if the \
         reader may pause, write to files with --output and --console",
        after.as_secs()
    )]
    Stalled {
        /// The number of events that are not known to be written.
        events: u64,
        /// The time without progress.
        after: Duration,
    },
}
