//! The errors of a launch.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};

use guest_images::{BuildError, CachedFileError, FetchError, InitramfsError, ModuleError};
use outer::{ExecutableError, QemuError, VmlinuxError};
use thiserror::Error;

use crate::selection::SelectionError;

/// No lines, or not all of them.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// A missing program or file, which a package installs.
    #[error(
        "{missing} is missing, which this rig needs: apt install --no-install-recommends {packages}"
    )]
    Missing {
        /// The program or file.
        missing: String,
        /// The packages to install.
        packages: &'static str,
    },
    /// A part of `--only` is in no case's name.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// A part of `--only` is in the names of cases with a stock kernel only, and no stock kernel was asked for.
    #[error(
        "`--only`: the cases with `{part}` in the name need a stock kernel: add --stock before `--`"
    )]
    StockCase {
        /// The part.
        part: String,
    },
    /// No QEMU, or an unsuitable QEMU.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// The program cannot be the outer Linux's init.
    #[error(transparent)]
    Executable(#[from] ExecutableError),
    /// A file is in the way.
    #[error("cannot {what} {}", path.display())]
    File {
        /// Create, read or write.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The test guest does not compile.
    #[error(transparent)]
    Guest(#[from] BuildError),
    /// A kernel cannot be unpacked.
    #[error(transparent)]
    Vmlinux(#[from] VmlinuxError),
    /// The outer Linux's kernel is not in the cache and cannot be fetched.
    #[error("cannot get the outer Linux's kernel")]
    Fetch(#[from] FetchError),
    /// A kernel in the cache cannot be read or has changed.
    #[error(transparent)]
    Cached(#[from] CachedFileError),
    /// A module is missing.
    #[error("cannot take the outer Linux's modules")]
    Modules(#[from] ModuleError),
    /// The initramfs cannot be built.
    #[error("cannot build the initramfs")]
    Initramfs(#[from] InitramfsError),
    /// A list of strings is no JSON.
    #[error("cannot write contract's arguments")]
    Arguments(#[from] serde_json::Error),
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed ({status}): {said}")]
    Failed {
        /// The program.
        program: &'static str,
        /// The exit status.
        status: ExitStatus,
        /// The text on standard error.
        said: String,
    },
    /// No pseudo-terminal for Bochs.
    #[error("cannot open a pseudo-terminal")]
    Terminal(#[source] io::Error),
    /// The machine ended before the last line.
    #[error("the machine ended before its last line ({status}); its last words:\n{said}")]
    Ended {
        /// The exit status of the machine's process.
        status: ExitStatus,
        /// The end of the serial line's output.
        said: String,
    },
    /// The last line did not come in time.
    #[error("no last line after {after_s} s; the last words:\n{said}")]
    TimedOut {
        /// The time waited.
        after_s: u64,
        /// The end of the serial line's output.
        said: String,
    },
    /// No line came for longer than the program had announced.
    #[error("no line for {after_s} s; the last words:\n{said}")]
    Silent {
        /// The time waited.
        after_s: u64,
        /// The end of the serial line's output.
        said: String,
    },
    /// The results cannot be put into JUnit's form.
    #[error("cannot put the results into JUnit's form")]
    Junit(#[from] quick_junit::SerializeError),
    /// The program ended without a line for the end of the cases.
    #[error("the lines have no end")]
    NoEnd,
    /// The kept lines are of another program.
    #[error(
        "the lines in {} are of another build of this rig: sweep again without --resume", path.display()
    )]
    OtherBuild {
        /// The file.
        path: PathBuf,
    },
    /// No results to make a table of.
    #[error("there are no results in {}: run `rig intel` or another first", path.display())]
    NoResults {
        /// The directory.
        path: PathBuf,
    },
}

impl LaunchError {
    /// Whether the machine, or the program, died or hangs.
    pub(crate) const fn is_death(&self) -> bool {
        matches!(self, Self::Ended { .. } | Self::Silent { .. })
    }
}

/// For `map_err`.
pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LaunchError {
    let path = path.to_owned();
    move |source| LaunchError::File { what, path, source }
}

/// Returns an error if the exit status of a program is a failure.
pub(super) fn check(program: &'static str, output: &Output) -> Result<(), LaunchError> {
    match output.status.success() {
        true => Ok(()),
        false => Err(LaunchError::Failed {
            program,
            status: output.status,
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        }),
    }
}

/// For `map_err`.
pub(super) fn start(program: &str) -> impl FnOnce(io::Error) -> LaunchError {
    let program = program.to_owned();
    move |source| LaunchError::Start { program, source }
}
