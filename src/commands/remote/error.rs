//! Why a command about a run came to nothing.

use std::io;
use std::path::PathBuf;

use control::ClientError;
use dump::sparse::ReceiveError;
use files::CreateError;
use thiserror::Error;

use super::dump_error::DumpViewError;
use super::places::PlacesError;
use super::refused_probes::RefusedProbes;
use crate::exit::{Exit, Failure};
use crate::source_lines::SourceLinesError;

/// See the module's text.
#[derive(Debug, Error)]
pub(crate) enum RemoteError {
    /// The run.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A dump.
    #[error(transparent)]
    Viewed(#[from] DumpViewError),
    /// Source lines and inlined copies.
    #[error(transparent)]
    SourceLines(#[from] SourceLinesError),
    /// The places of source lines and inlined copies.
    #[error(transparent)]
    Places(#[from] PlacesError),
    /// Probes that are added and not armed.
    #[error(transparent)]
    RefusedProbes(#[from] RefusedProbes),
    /// Standard output, or the terminal.
    #[error("cannot write to standard output")]
    Write(#[from] io::Error),
    /// The file of a dump.
    #[error("cannot write the dump {path}")]
    Create {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: CreateError,
    },
    /// The dump is not complete.
    #[error("cannot dump the guest into {path}")]
    Dump {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ReceiveError,
    },
    /// Standard output is not a terminal.
    #[error("`hyprobe top` needs a terminal")]
    NoTerminal,
}

impl Failure for RemoteError {
    fn exit(&self) -> Exit {
        match self {
            // The same mistake on the run's command line has the same exit code.
            Self::Client(ClientError::Refused(problem)) if problem.status < 500 => Exit::Usage,
            Self::Client(ClientError::Connect { .. })
            | Self::NoTerminal
            | Self::Create { .. }
            | Self::RefusedProbes(_) => Exit::Usage,
            Self::Viewed(error) => error.exit(),
            Self::SourceLines(error) => error.exit(),
            Self::Places(error) => error.exit(),
            Self::Client(_) | Self::Write(_) | Self::Dump { .. } => Exit::HostCannot,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Client(error) => error.help(),
            Self::Viewed(error) => error.help(),
            Self::SourceLines(error) => error.help(),
            Self::Places(error) => error.help(),
            Self::RefusedProbes(refused) => Some(refused.help()),
            Self::NoTerminal => Some("`hyprobe probe list` writes to anything".to_owned()),
            Self::Write(_) | Self::Create { .. } | Self::Dump { .. } => None,
        }
    }
}
