//! The exit code: the result of a command, for scripts.
//!
//! An error names its exit code and its advice beside its definition, see [`Failure`].

use std::process::ExitCode;

use manifest::{GuestEnd, InvalidManifest};

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
