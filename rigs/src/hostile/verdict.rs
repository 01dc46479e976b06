//! Which ends of a run are allowed.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

/// Words of hyprobe about itself that must not appear.
const BUGS: [&str; 4] = [
    "panicked at ",
    "this is a bug",
    "internal error",
    "stack overflow",
];
/// What ends a run with exit code 3, and is KVM's: the guest has executed what this KVM cannot.
const KVM: [&str; 3] = [
    "KVM cannot emulate the guest's instruction",
    "cannot enter the guest: hardware reason",
    "KVM_EXIT_INTERNAL_ERROR, suberror",
];
/// The same for QEMU, in whose TCG the outer Linux runs.
const QEMU: [&str; 2] = ["QEMU ended (", "the outer Linux has not started hyprobe"];
/// Words of an outer Linux whose hyprobe has used too much memory, or has died: QEMU's end follows from that.
const OUTER: [&str; 3] = ["Out of memory", "oom-kill", "Attempted to kill init"];

/// How a run ended.
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
    /// KVM could not go on with the guest: 3.
    KvmGaveUp,
    /// QEMU's own end: 3.
    QemuEnded,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "ended",
            Self::Crashed => "crashed",
            Self::TimedOut => "timed-out",
            Self::Interrupted => "interrupted",
            Self::KvmGaveUp => "kvm-gave-up",
            Self::QemuEnded => "qemu-ended",
        })
    }
}

/// The end of a run with this exit status, after these words on standard output and error. Otherwise, what is wrong.
pub(super) fn end(status: ExitStatus, said: &str, is_signalled: bool) -> Result<End, String> {
    if let Some(signal) = status.signal() {
        return Err(format!("hyprobe was ended by signal {signal}"));
    }
    let contains = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if let Some(word) = BUGS.iter().find(|word| said.contains(**word)) {
        return Err(format!("hyprobe says `{word}`"));
    }
    match status.code() {
        Some(0) => Ok(End::Ended),
        Some(4) => Ok(End::Crashed),
        Some(5) => Ok(End::TimedOut),
        Some(6) if is_signalled => Ok(End::Interrupted),
        Some(3) if contains(&KVM) => Ok(End::KvmGaveUp),
        Some(3) if contains(&QEMU) && !contains(&OUTER) => Ok(End::QemuEnded),
        code => Err(format!("exit code {code:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn ends_of_the_guest_are_allowed() {
        assert_eq!(end(exited(0), "", false), Ok(End::Ended));
        let said = "The guest's kernel panicked: Fatal exception";
        assert_eq!(end(exited(4), said, false), Ok(End::Crashed));
        assert_eq!(end(exited(5), "", true), Ok(End::TimedOut));
        assert_eq!(end(exited(6), "", true), Ok(End::Interrupted));
    }

    #[test]
    fn ends_of_hyprobe_are_not() {
        for (status, said) in [
            (ExitStatus::from_raw(11), ""),
            (exited(0), "hyprobe's thread `vcpu0` panicked at x: y"),
            (exited(1), ""),
            (exited(2), ""),
            (
                exited(3),
                "error: cannot carry out the guest's write at 0x10",
            ),
            (
                exited(3),
                "error: QEMU ended (signal 6) before the nested run did\n  Out of memory: Killed process 1",
            ),
            (exited(6), ""),
            (exited(101), ""),
        ] {
            assert!(end(status, said, false).is_err(), "{status:?} {said}");
        }
    }

    #[test]
    fn ends_of_kvm_and_qemu_have_their_own_names() {
        let kvm = "The run failed: KVM cannot emulate the guest's instruction at 0x0 (bytes [d8])";
        assert_eq!(end(exited(3), kvm, false), Ok(End::KvmGaveUp));
        let qemu = "error: QEMU ended (signal 6) before the nested run did";
        assert_eq!(end(exited(3), qemu, false), Ok(End::QemuEnded));
    }
}
