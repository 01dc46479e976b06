//! The exit code: the result of a command, for scripts.
//!
//! The mapping of failures to exit codes is here and nowhere else.

use std::process::ExitCode;

use files::CreateError;
use manifest::{GuestEnd, InvalidManifest, ManifestError};
use probes::{PATTERN_HELP, SessionError};

use crate::check::CheckError;
use crate::doctor::DoctorError;
use crate::guest::GuestError;
use crate::images::ImageError;
use crate::kernel_input::OpenKernelError;
use crate::merge::MergeError;
use crate::nested::LaunchError;
use crate::package_files::PackageFilesError;
use crate::run::RunError;
use crate::sandbox::SandboxError;
use crate::session::RunFailure;
use crate::symbols::SymbolsError;
use crate::test::TestError;

/// What to do if the sandbox cannot be put in force.
const SANDBOX_HELP: &str = "`--no-sandbox` runs without it: a guest that takes hyprobe over then has all rights of its user";

/// How the command ended. The numbers are part of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The command did its work.
    Done = 0,
    /// An expectation failed, or a search found nothing.
    ExpectationFailed = 1,
    /// The command line, the manifest or an input named there is wrong.
    Usage = 2,
    /// This host cannot execute the command.
    HostCannot = 3,
    /// The guest panicked or triple-faulted.
    GuestCrashed = 4,
    /// `--timeout` passed.
    Timeout = 5,
    /// A signal ended the run: nothing was judged.
    Interrupted = 6,
}

impl Exit {
    /// The exit for the exit code of a hyprobe in an outer Linux.
    pub(crate) const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Done,
            1 => Self::ExpectationFailed,
            2 => Self::Usage,
            4 => Self::GuestCrashed,
            5 => Self::Timeout,
            6 => Self::Interrupted,
            // Among the other codes: a panic of hyprobe.
            _ => Self::HostCannot,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<GuestEnd> for Exit {
    fn from(end: GuestEnd) -> Self {
        match end {
            // A guest that resets or halts by itself has ended normally. A stop was requested. An exit code is the guest's own verdict,
            // shown in the summary.
            GuestEnd::Poweroff
            | GuestEnd::Reset
            | GuestEnd::Halted
            | GuestEnd::Stopped
            | GuestEnd::Exit => Self::Done,
            GuestEnd::Panic | GuestEnd::TripleFault => Self::GuestCrashed,
            GuestEnd::Timeout => Self::Timeout,
            GuestEnd::Failed => Self::HostCannot,
        }
    }
}

/// Maps an error to a command's exit code and advice.
pub(crate) trait Failure: std::error::Error {
    /// The exit code.
    fn exit(&self) -> Exit;

    /// Advice for the user, if the message contains none.
    fn help(&self) -> Option<String> {
        None
    }

    /// The faulty manifest, if any. The printed manifest shows the spots of the errors.
    fn manifest(&self) -> Option<&InvalidManifest> {
        None
    }
}

impl Failure for RunError {
    fn exit(&self) -> Exit {
        match self {
            Self::Merge(error) => error.exit(),
            Self::Guest(error) => error.exit(),
            Self::Here(error) => error.exit(),
            // An error inside has the exit code of the same error on this host.
            Self::Nested(LaunchError::Inner(error)) => Exit::from_code(error.exit_code),
            Self::Neither { .. }
            | Self::Qemu(_)
            | Self::Signals(_)
            | Self::Input(_)
            | Self::Clients(_)
            | Self::Nested(_)
            | Self::Output(_)
            | Self::Sandbox(_)
            | Self::Panicked(_) => Exit::HostCannot,
            Self::Report(_) | Self::Socket(_) | Self::Identity(_) => Exit::Usage,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Merge(error) => error.help(),
            Self::Guest(error) => error.help(),
            Self::Identity(error) => Some(error.advice()),
            Self::Sandbox(SandboxError::Files(_) | SandboxError::Calls(_)) => {
                Some(SANDBOX_HELP.to_owned())
            }
            _ => None,
        }
    }

    fn manifest(&self) -> Option<&InvalidManifest> {
        match self {
            Self::Merge(error) => error.manifest(),
            _ => None,
        }
    }
}

impl Failure for MergeError {
    fn exit(&self) -> Exit {
        match self {
            Self::Image { source, .. } => source.exit(),
            Self::Manifest(_)
            | Self::NoKernel
            | Self::Modules
            | Self::Probe { .. }
            | Self::Path { .. } => Exit::Usage,
        }
    }

    fn help(&self) -> Option<String> {
        self.advice()
    }

    fn manifest(&self) -> Option<&InvalidManifest> {
        match self {
            Self::Manifest(ManifestError::Invalid(manifest)) => Some(manifest),
            _ => None,
        }
    }
}

impl Failure for GuestError {
    fn exit(&self) -> Exit {
        match self {
            Self::Demo(error) => error.exit(),
            Self::Memory { .. } | Self::Kernel(OpenKernelError::Cached(_)) => Exit::HostCannot,
            Self::Kernel(OpenKernelError::Kernel(_))
            | Self::Contents { .. }
            | Self::Initrd { .. }
            | Self::Boot(_)
            | Self::Moves(_)
            | Self::Tasks { .. }
            | Self::Probe(_) => Exit::Usage,
        }
    }

    fn help(&self) -> Option<String> {
        self.advice()
    }
}

impl Failure for RunFailure {
    fn exit(&self) -> Exit {
        match self {
            Self::Guest(error) => error.exit(),
            Self::Session(SessionError::Resolve(_) | SessionError::AddressMoves { .. }) => {
                Exit::Usage
            }
            Self::Host(_)
            | Self::SelfTest(_)
            | Self::Input(_)
            | Self::Control(_)
            | Self::Session(_) => Exit::HostCannot,
        }
    }
}

impl Failure for ImageError {
    fn exit(&self) -> Exit {
        if self.is_usage() {
            Exit::Usage
        } else {
            Exit::HostCannot
        }
    }
}

impl Failure for SymbolsError {
    fn exit(&self) -> Exit {
        match self {
            Self::Image(error) => error.exit(),
            Self::Kernel(OpenKernelError::Cached(_)) => Exit::HostCannot,
            Self::Kernel(OpenKernelError::Kernel(_)) | Self::Contents { .. } => Exit::Usage,
            Self::NoMatch { .. } => Exit::ExpectationFailed,
            Self::Write(_) => Exit::HostCannot,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::NoMatch { near, .. } if !near.is_empty() => {
                Some(format!("near names: {}", near.join(", ")))
            }
            Self::NoMatch { .. } => Some(PATTERN_HELP.to_owned()),
            _ => None,
        }
    }
}

impl Failure for TestError {
    fn exit(&self) -> Exit {
        match self {
            Self::Manifests { exit, .. } => *exit,
            Self::Place(error) => error.exit(),
            Self::Signals(_)
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
            Self::Place(error) => error.help(),
            _ => None,
        }
    }
}

impl Failure for CheckError {
    fn exit(&self) -> Exit {
        match self {
            Self::Merge(error) => error.exit(),
            Self::Guest(error) => error.exit(),
            Self::Write(_) => Exit::HostCannot,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Merge(error) => error.help(),
            Self::Guest(error) => error.help(),
            Self::Write(_) => None,
        }
    }

    fn manifest(&self) -> Option<&InvalidManifest> {
        match self {
            Self::Merge(error) => error.manifest(),
            Self::Guest(_) | Self::Write(_) => None,
        }
    }
}

impl Failure for PackageFilesError {
    fn exit(&self) -> Exit {
        Exit::HostCannot
    }
}

impl Failure for DoctorError {
    fn exit(&self) -> Exit {
        Exit::HostCannot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_contract() {
        let codes = [
            (Exit::from(GuestEnd::Poweroff), 0),
            (Exit::ExpectationFailed, 1),
            (Exit::Usage, 2),
            (Exit::HostCannot, 3),
            (Exit::from(GuestEnd::Panic), 4),
            (Exit::from(GuestEnd::TripleFault), 4),
            (Exit::from(GuestEnd::Timeout), 5),
            (Exit::Interrupted, 6),
        ];
        for (exit, code) in codes {
            assert_eq!(exit as u8, code, "{exit:?}");
        }
    }
}
