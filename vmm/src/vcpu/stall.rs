//! Stall reports: the guest learns that a vCPU was out of the guest for long.
//!
//! The guest's clock continues while its vCPUs are paused. After a pause of 20 s, the guest's watchdogs find that no task has
//! run for 20 s, and report a soft lockup or an RCU stall. With `KVM_KVMCLOCK_CTRL`, KVM sets PVCLOCK_GUEST_STOPPED in the
//! vCPU's kvm-clock page. When the guest sees the flag, the guest resets its watchdogs.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Shortest stay out of the guest that the VMM reports: below any limit of the guest's watchdogs (2 s at the least), and far
/// above the time of a trap. With a report at each trap, the guest would never find a lockup of its own.
const LONG: Duration = Duration::from_secs(1);

/// Time of a vCPU's last exit, by a clock that costs a few nanoseconds and is some milliseconds wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftAt(Duration);

impl LeftAt {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        Self(Duration::try_from(now).unwrap_or_default())
    }

    /// Whether `now` is so long after the exit that the VMM reports a stall.
    pub(super) fn is_long_ago(self, now: Self) -> bool {
        now.0.saturating_sub(self.0) >= LONG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
