//! The RIPs of paused vCPUs.
//!
//! Only a vCPU's own thread reads the vCPU's registers. Each vCPU therefore publishes its RIP before it counts as parked, for
//! the holder of the pause.

use std::sync::{Mutex, MutexGuard, PoisonError};

use address::Gva;

/// The last published RIP and NMI state of each vCPU.
#[derive(Debug)]
pub(crate) struct Rips(Mutex<Vec<Option<Stand>>>);

/// RIP and NMI state of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stand {
    pub(super) rip: Gva,
    /// NMIs are held back: the vCPU handles an NMI.
    pub(super) in_nmi: bool,
}

impl Rips {
    pub(crate) fn new(vcpus: usize) -> Self {
        Self(Mutex::new(vec![None; vcpus]))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Stand>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the RIP and the NMI state of `vcpu`. Called on the vCPU's thread, before the vCPU parks.
    pub(super) fn say(&self, vcpu: usize, stand: Stand) {
        self.lock()[vcpu] = Some(stand);
    }

    /// The RIPs of all vCPUs that have been started. Called with the vCPUs paused.
    pub(crate) fn all(&self) -> Vec<Gva> {
        self.lock()
            .iter()
            .flatten()
            .map(|stand| stand.rip)
            .collect()
    }

    /// Whether any vCPU handles an NMI. Called with the vCPUs paused.
    pub(crate) fn is_one_in_nmi(&self) -> bool {
        self.lock().iter().flatten().any(|stand| stand.in_nmi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_started_stands_nowhere() {
        let rips = Rips::new(3);
        assert!(rips.all().is_empty());
        let at = |rip, in_nmi| Stand {
            rip: Gva(rip),
            in_nmi,
        };
        rips.say(2, at(0x2000, true));
        assert!(rips.is_one_in_nmi());
        rips.say(0, at(0x1000, false));
        rips.say(2, at(0x3000, false));
        assert_eq!(rips.all(), [Gva(0x1000), Gva(0x3000)]);
        assert!(!rips.is_one_in_nmi());
    }
}
