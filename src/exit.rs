//! The exit code: what became of a command, for scripts.

use std::process::ExitCode;

use probes::GuestEnd;

/// How the command ended. The numbers are part of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It did what it was asked to.
    Done = 0,
    /// An expectation failed, or a search found nothing.
    ExpectationFailed = 1,
    /// The command line or the manifest is wrong, or names something that is.
    Usage = 2,
    /// This host cannot do it.
    HostCannot = 3,
    /// The guest panicked or triple-faulted.
    GuestCrashed = 4,
    /// `--timeout` passed.
    Timeout = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<GuestEnd> for Exit {
    fn from(end: GuestEnd) -> Self {
        match end {
            // A guest that resets or halts of its own accord has come to its end; a stop was somebody's wish; an exit
            // code is the guest's own verdict, which the summary shows.
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
        ];
        for (exit, code) in codes {
            assert_eq!(exit as u8, code, "{exit:?}");
        }
    }
}
