//! A vCPU that was kept out of the guest for long, and how the guest learns of it.
//!
//! The guest's clock goes on while its vCPUs are paused. Behind a pause of 20 s its watchdogs find that no task has run for
//! that long, and report a soft lockup or a stall of RCU. With `KVM_KVMCLOCK_CTRL`, KVM sets PVCLOCK_GUEST_STOPPED in the
//! vCPU's kvm-clock page; the guest resets its watchdogs when it sees that.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::stopped::StoppedVcpu;

/// From here on the guest is told: below any limit of its watchdogs (2 s at the least), and far above what a trap takes. A
/// guest that is told at each trap would never find a lockup of its own.
const LONG: Duration = Duration::from_secs(1);

/// When a vCPU left the guest, by a clock that costs a few nanoseconds and is some milliseconds wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftAt(Duration);

impl LeftAt {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        Self(Duration::try_from(now).unwrap_or_default())
    }

    fn is_long_ago(self, now: Self) -> bool {
        now.0.saturating_sub(self.0) >= LONG
    }
}

impl StoppedVcpu<'_> {
    /// To be called right before the guest is entered. If the vCPU was out of it for long, the guest learns of it.
    pub(super) fn report_stall(&mut self) {
        if let Some(left) = self.left_at
            && left.is_long_ago(LeftAt::now())
        {
            // EINVAL: the guest has no kvm-clock on this vCPU, or not yet. Then it has watchdogs that nobody can reach.
            let _ = self.fd.kvmclock_ctrl();
        }
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
