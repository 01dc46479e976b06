//! Why a dump cannot be viewed.

use std::path::PathBuf;

use dump::{DumpReadError, DumpedStacksError, OpenDumpError};
use files::ReadError;
use inspect::expression::PrintError;
use inspect::{LogError, ModuleListError, PerCpuError, TaskListError};
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
    /// A read of the file failed, so that the answer is wrong or not complete.
    #[error("cannot read the dump {path}")]
    FailedRead {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: DumpReadError,
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
    /// The per-CPU variables.
    #[error(transparent)]
    PerCpu(#[from] PerCpuError),
    /// The stacks.
    #[error(transparent)]
    Stacks(#[from] DumpedStacksError),
    /// The expression.
    #[error(transparent)]
    Print(#[from] PrintError),
}

impl Failure for DumpViewError {
    fn exit(&self) -> Exit {
        match self {
            Self::FailedRead { .. }
            | Self::Open {
                source: OpenDumpError::Read(_),
                ..
            } => Exit::HostCannot,
            // As for a run, which refuses the request.
            _ => Exit::Usage,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Open { source, .. } => source.help().map(str::to_owned),
            Self::Stacks(DumpedStacksError::List(error)) => error.help(),
            Self::PerCpu(error) => error.help(),
            Self::Print(PrintError::Evaluate(error)) => error.help(),
            _ => None,
        }
    }
}
