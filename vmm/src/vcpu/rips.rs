//! Where paused vCPUs stand.
//!
//! A vCPU's registers are its own thread's. So each says where it stands before it counts as parked, and whoever pauses
//! the vCPUs finds it said.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The RIP of each vCPU, as it was last said.
#[derive(Debug)]
pub(crate) struct Rips(Mutex<Vec<Option<u64>>>);

impl Rips {
    pub(crate) fn new(vcpus: usize) -> Self {
        Self(Mutex::new(vec![None; vcpus]))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called on the vCPU's thread, before it parks.
    pub(super) fn say(&self, vcpu: usize, rip: u64) {
        self.lock()[vcpu] = Some(rip);
    }

    /// Of those that have been started. To be called with the vCPUs paused.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.lock().iter().copied().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_started_stands_nowhere() {
        let rips = Rips::new(3);
        assert!(rips.all().is_empty());
        rips.say(2, 0x2000);
        rips.say(0, 0x1000);
        rips.say(2, 0x3000);
        assert_eq!(rips.all(), [0x1000, 0x3000]);
    }
}
