//! Stall reports: the guest learns that a vCPU was out of the guest for long.
//!
//! The guest's clock continues while its vCPUs are paused. After a pause of 20 s, the guest's watchdogs find that no task has
//! run for 20 s, and report a soft lockup or an RCU stall. With `KVM_KVMCLOCK_CTRL`, KVM sets PVCLOCK_GUEST_STOPPED in the
//! vCPU's kvm-clock page. When the guest sees the flag, the guest resets its watchdogs.

#![expect(
    unsafe_code,
    reason = "no safe function reads the coarse clock by the C library, which has the kernel's clock functions from the start"
)]

use std::time::Duration;

/// Shortest stay out of the guest that the VMM reports: below any limit of the guest's watchdogs (2 s at the least), and far
/// above the time of a trap. With a report at each trap, the guest would never find a lockup of its own.
const LONG: Duration = Duration::from_secs(1);

/// Time of a vCPU's last exit, by a clock that costs a few nanoseconds and is some milliseconds wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftAt(Duration);

impl LeftAt {
    /// Reads the clock twice for each exit, so the read must not be a system call. `rustix` looks for the clock functions at the first read, in
    /// a file before Linux 6.4. The filter of a vCPU's thread refuses the file.
    pub(super) fn now() -> Self {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to a whole `timespec` that outlives the call.
        let done = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
        assert_eq!(done, 0, "every kernel has the coarse clock");
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
        Self(Duration::from_secs(seconds) + Duration::from_nanos(nanos))
    }

    /// Whether `now` is so long after the exit that the VMM reports a stall.
    pub(super) fn is_long_ago(self, now: Self) -> bool {
        now.0.saturating_sub(self.0) >= LONG
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

    use super::*;

    #[test]
    fn clock_is_read_without_files_and_system_calls() {
        let calls = [libc::SYS_clock_gettime, libc::SYS_openat, libc::SYS_prctl];
        let rules: BTreeMap<_, _> = calls.map(|call| (call, Vec::new())).into();
        let refused = SeccompAction::KillThread;
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, TargetArch::x86_64);
        let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
        let read = std::thread::spawn(move || {
            apply_filter(&program).expect("in force");
            LeftAt::now()
        });
        assert!(read.join().expect("no system call").0 > Duration::ZERO);
    }

    #[test]
    fn a_second_is_long() {
        let at = |millis| LeftAt(Duration::from_millis(millis));
        assert!(!at(5000).is_long_ago(at(5000)));
        assert!(!at(5000).is_long_ago(at(5999)));
        assert!(at(5000).is_long_ago(at(6000)));
        // Clocks of two processors may differ by a tick.
        assert!(!at(5000).is_long_ago(at(4996)));
    }
}
