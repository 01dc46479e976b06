//! Why no case is tested, or no results are reported.

use std::io;
use std::path::PathBuf;

use files::CreateError;
use thiserror::Error;

use crate::exit::{Exit, Failure};
use crate::run::guest::GuestError;
use crate::run::identity::IdentityError;
use crate::run::judged::AdmitError;
use crate::run::place::PlaceError;
use crate::sandbox::SandboxError;
use crate::source_lines::SourceLinesError;

/// The reason why no case could be tested, or why the results could not be reported.
#[derive(Debug, Error)]
pub(crate) enum TestError {
    /// A folder or a file.
    #[error("cannot read {path}")]
    Read {
        /// The folder or the file.
        path: PathBuf,
        /// The error from the system.
        source: io::Error,
    },
    /// No manifests were found.
    #[error("there is no manifest (*.toml) in {}", folders.join(", "))]
    Nothing {
        /// The searched folders.
        folders: Vec<String>,
    },
    /// Manifests are wrong; the error of each has been printed.
    #[error("{wrong} of {all} cases cannot be run, so none was")]
    Manifests {
        /// The number of wrong cases.
        wrong: usize,
        /// The number of all cases.
        all: usize,
        /// The exit code of the first error.
        exit: Exit,
    },
    /// A guest cannot be booted or probed as requested.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// Source lines and inlined copies.
    #[error(transparent)]
    SourceLines(#[from] SourceLinesError),
    /// The probes of the expectations.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// `--user` or `--chroot`.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The place of the runs, or a run there.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The rights of this process.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The core file of a guest that crashes.
    #[error("cannot make the core file for a crash of the guest")]
    Core(#[source] io::Error),
    /// Signals.
    #[error("cannot catch signals")]
    Signals(#[source] io::Error),
    /// A worker.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// Results.
    #[error("cannot write the results to {path}")]
    Write {
        /// The path of the results.
        path: PathBuf,
        /// The error from the system.
        source: io::Error,
    },
    /// The JUnit file, or the folder of the artifacts.
    #[error("cannot write the results to {path}")]
    Create {
        /// The path of the results.
        path: PathBuf,
        /// The cause.
        source: CreateError,
    },
    /// The results in JUnit's form.
    #[error("cannot put the results into JUnit's form")]
    Junit(#[from] quick_junit::SerializeError),
}

impl Failure for TestError {
    fn exit(&self) -> Exit {
        match self {
            Self::Manifests { exit, .. } => *exit,
            Self::Guest(error) => error.exit(),
            Self::SourceLines(error) => error.exit(),
            Self::Admit(error) => error.exit(),
            Self::Identity(error) => error.exit(),
            Self::Place(error) => error.exit(),
            Self::Sandbox(error) => error.exit(),
            Self::Signals(_)
            | Self::Core(_)
            | Self::Thread(_)
            | Self::Write { .. }
            | Self::Create {
                source: CreateError::Io(_),
                ..
            }
            | Self::Junit(_) => Exit::HostCannot,
            Self::Read { .. } | Self::Nothing { .. } | Self::Create { .. } => Exit::Usage,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Guest(error) => error.help(),
            Self::SourceLines(error) => error.help(),
            Self::Admit(error) => error.help(),
            Self::Identity(error) => error.help(),
            Self::Sandbox(error) => error.help(),
            _ => None,
        }
    }
}
