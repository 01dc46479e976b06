//! Why a command about a run came to nothing.

use std::io;

use control::ClientError;
use thiserror::Error;

use crate::exit::{Exit, Failure};

/// See the module's text.
#[derive(Debug, Error)]
pub(crate) enum RemoteError {
    /// The run.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Standard output, or the terminal.
    #[error("cannot write to standard output")]
    Write(#[from] io::Error),
    /// Standard output is not a terminal.
    #[error("`hyprobe top` needs a terminal")]
    NoTerminal,
}

impl Failure for RemoteError {
    fn exit(&self) -> Exit {
        match self {
            // The same mistake on the run's command line has the same exit code.
            Self::Client(ClientError::Refused(problem)) if problem.status < 500 => Exit::Usage,
            Self::Client(ClientError::Connect { .. }) | Self::NoTerminal => Exit::Usage,
            Self::Client(_) | Self::Write(_) => Exit::HostCannot,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Client(error) => error.help(),
            Self::NoTerminal => Some("`hyprobe probe list` writes to anything".to_owned()),
            Self::Write(_) => None,
        }
    }
}
