//! Which ends of a run are allowed.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// Words of a failure of hyprobe itself.
const BUGS: [&str; 4] = [
    "panicked at ",
    "this is a bug",
    "internal error",
    "stack overflow",
];
/// The message of a KVM that interprets ring 0 and cannot execute an instruction of the guest; the exit code is 3. The address
/// follows. A KVM on hardware executes it.
const KVM: &str = "KVM cannot emulate the guest's instruction at 0x";
/// The messages of a guest that entered system-management mode or firmware: the machine has neither.
const OUTSIDE: [&str; 2] = [
    "a system-management interrupt, and this machine",
    "by INIT, and this machine has no firmware",
];
/// The message of a crash of QEMU, in whose TCG the outer Linux runs. (SIGSYS would be hyprobe's own filter.)
const QEMU: [&str; 3] = [
    "QEMU ended (signal 6)",
    "QEMU ended (signal 11)",
    "the outer Linux has not started hyprobe",
];
/// Words of an outer Linux whose hyprobe has used too much memory, or has died. QEMU ends as a consequence.
const OUTER: [&str; 3] = ["Out of memory", "oom-kill", "Attempted to kill init"];

/// The end of a run, with its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The guest came to an end, or was stopped: exit code 0.
    Ended,
    /// The guest panicked or triple-faulted: 4.
    Crashed,
    /// `--timeout` passed: 5.
    TimedOut,
    /// The rig's SIGTERM ended the run: 6.
    Interrupted,
    /// The guest left its machine: 3.
    Outside,
    /// KVM could not go on with the guest: 3.
    KvmGaveUp,
    /// The same in hyprobe's own memory, to which the guest jumps as well: 3.
    KvmGaveUpInDetour,
    /// QEMU crashed: 3.
    QemuEnded,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "ended",
            Self::Crashed => "crashed",
            Self::TimedOut => "timed-out",
            Self::Interrupted => "interrupted",
            Self::Outside => "outside",
            Self::KvmGaveUp => "kvm-gave-up",
            Self::KvmGaveUpInDetour => "kvm-gave-up-in-detour",
            Self::QemuEnded => "qemu-ended",
        })
    }
}

/// The rig's request to end a run in good time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndRequest {
    /// No request, or one shortly before the timeout.
    Nothing,
    /// By the control socket.
    Stop,
    /// By SIGTERM.
    Signal,
}

/// The outputs of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left<'a> {
    pub(super) status: ExitStatus,
    /// Standard output and error.
    pub(super) said: &'a str,
    pub(super) end_request: EndRequest,
    /// The end of the guest's memory, if KVM interprets ring 0. Other KVMs execute every instruction.
    pub(super) interpreted_below: Option<u64>,
}

impl Left<'_> {
    /// The end of the run, or the reason of a failure.
    pub(super) fn end(&self) -> Result<End, String> {
        let Self {
            said, end_request, ..
        } = *self;
        if let Some(signal) = self.status.signal() {
            return Err(format!("hyprobe was ended by signal {signal}"));
        }
        let contains = |words: &[&str]| words.iter().any(|word| said.contains(word));
        if let Some(word) = BUGS.iter().find(|word| said.contains(**word)) {
            return Err(format!("hyprobe says `{word}`"));
        }
        match (self.status.code(), end_request) {
            (Some(0), _) => Ok(End::Ended),
            (Some(4), _) => Ok(End::Crashed),
            (Some(5), EndRequest::Nothing) => Ok(End::TimedOut),
            (Some(5), _) => Err("the run was asked to end, and ended at its timeout".to_owned()),
            (Some(6), EndRequest::Signal) => Ok(End::Interrupted),
            (Some(3), _) if contains(&OUTSIDE) => Ok(End::Outside),
            (Some(3), _) if contains(&QEMU) && !contains(&OUTER) => Ok(End::QemuEnded),
            (code, _) => match (code, self.gave_up_at(), self.interpreted_below) {
                (Some(3), Some(at), Some(end)) if at < end => Ok(End::KvmGaveUp),
                (Some(3), Some(_), Some(_)) => Ok(End::KvmGaveUpInDetour),
                _ => Err(format!("exit code {code:?}")),
            },
        }
    }

    fn gave_up_at(&self) -> Option<u64> {
        let (_, address) = self.said.split_once(KVM)?;
        let digits = address.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        u64::from_str_radix(digits, 16).ok()
    }

    /// The line with the run's error, if the run failed.
    pub(super) fn why(&self) -> Option<&str> {
        let is_reason = |line: &&str| line.contains(KVM) || line.contains("QEMU ended");
        self.said.lines().find(is_reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM: u64 = 0x400_0000;

    fn end(code: i32, said: &str, end_request: EndRequest) -> Result<End, String> {
        let left = |interpreted_below| Left {
            status: ExitStatus::from_raw(code << 8),
            said,
            end_request,
            interpreted_below,
        };
        left(Some(RAM)).end()
    }

    #[test]
    fn ends_of_the_guest_are_allowed() {
        assert_eq!(end(0, "", EndRequest::Nothing), Ok(End::Ended));
        let said = "The guest's kernel panicked: Fatal exception";
        assert_eq!(end(4, said, EndRequest::Stop), Ok(End::Crashed));
        assert_eq!(end(5, "", EndRequest::Nothing), Ok(End::TimedOut));
        assert_eq!(end(6, "", EndRequest::Signal), Ok(End::Interrupted));
    }

    #[test]
    fn ends_of_hyprobe_are_not() {
        for (code, said) in [
            (0, "hyprobe's thread `vcpu0` panicked at x: y"),
            (1, ""),
            (2, ""),
            (3, "error: cannot carry out the guest's write at 0x10"),
            (
                3,
                "error: cannot enter the guest: hardware reason 0x80000021",
            ),
            (3, "error: QEMU ended (signal 31) before the nested run did"),
            (
                3,
                "error: QEMU ended (signal 6) before the nested run did\n  Out of memory: Killed process 1",
            ),
            (6, ""),
            (101, ""),
        ] {
            end(code, said, EndRequest::Nothing).expect_err(said);
        }
        let killed = Left {
            status: ExitStatus::from_raw(11),
            said: "",
            end_request: EndRequest::Nothing,
            interpreted_below: None,
        };
        killed.end().expect_err("a signal");
        // The rig had asked for the end.
        for end_request in [EndRequest::Stop, EndRequest::Signal] {
            end(5, "", end_request).expect_err("its timeout");
        }
    }

    #[test]
    fn ends_of_kvm_and_qemu_have_their_own_names() {
        let kvm =
            "The run failed: KVM cannot emulate the guest's instruction at 0x105bef (bytes [d8])";
        assert_eq!(end(3, kvm, EndRequest::Stop), Ok(End::KvmGaveUp));
        let detour =
            "The run failed: KVM cannot emulate the guest's instruction at 0x4000a51 (bytes [d8])";
        assert_eq!(end(3, detour, EndRequest::Stop), Ok(End::KvmGaveUpInDetour));
        let hardware = Left {
            status: ExitStatus::from_raw(3 << 8),
            said: kvm,
            end_request: EndRequest::Nothing,
            interpreted_below: None,
        };
        hardware.end().expect_err("such a KVM executes all");
        assert_eq!(hardware.why(), Some(kvm));
        let outside = "the guest has restarted its vCPU 0 by INIT, and this machine has no firmware to begin with";
        assert_eq!(end(3, outside, EndRequest::Nothing), Ok(End::Outside));
        let qemu = "error: QEMU ended (signal 6) before the nested run did";
        assert_eq!(end(3, qemu, EndRequest::Nothing), Ok(End::QemuEnded));
    }
}
