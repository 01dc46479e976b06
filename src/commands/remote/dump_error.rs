//! Why a dump cannot be viewed.

use std::path::PathBuf;

use dump::{DumpedStacksError, OpenDumpError};
use files::ReadError;
use inspect::expression::PrintError;
use inspect::{LogError, ModuleListError, TaskListError};
use thiserror::Error;

use crate::exit::{Exit, Failure};

/// Why a dump cannot be viewed.
#[derive(Debug, Error)]
pub(crate) enum DumpViewError {
    /// The file cannot be opened.
    #[error("cannot read the dump {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ReadError,
    },
    /// The file is no dump, or hyprobe does not find the kernel.
    #[error("cannot use the dump {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: OpenDumpError,
    },
    /// The tasks.
    #[error(transparent)]
    Tasks(#[from] TaskListError),
    /// The modules.
    #[error(transparent)]
    Modules(#[from] ModuleListError),
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The stacks.
    #[error(transparent)]
    Stacks(#[from] DumpedStacksError),
    /// The expression.
    #[error(transparent)]
    Print(#[from] PrintError),
}

impl Failure for DumpViewError {
    // As for a run, which refuses the request.
    fn exit(&self) -> Exit {
        Exit::Usage
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Open { source, .. } => source.help().map(str::to_owned),
            Self::Stacks(DumpedStacksError::List(error)) => error.help(),
            Self::Print(PrintError::Evaluate(error)) => error.help(),
            _ => None,
        }
    }
}
