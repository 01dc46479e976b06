//! Moving vCPUs that are paused: memory that one may be executing from is about to go.
//!
//! A vCPU's registers are its own thread's. So a move is published while the vCPUs are paused, and each carries it out
//! itself before it next enters the guest; [`Moves::are_made`] tells when all have.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a vCPU goes on instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its RIP.
    pub rip: u64,
    /// What it was executing has pushed its flags: they come off the stack.
    pub pops_flags: bool,
}

/// By the RIP that the vCPU has.
pub(crate) type Destinations = BTreeMap<u64, Destination>;

/// The moves of a machine.
#[derive(Debug)]
pub(crate) struct Moves {
    destinations: Mutex<Arc<Destinations>>,
    /// Counts calls of [`publish`](Self::publish), so that a vCPU sees one with a load.
    published: AtomicU64,
    /// For each vCPU, how many of them it has heeded.
    heeded: Vec<AtomicU64>,
}

impl Moves {
    pub(crate) fn new(vcpus: usize) -> Self {
        Self {
            destinations: Mutex::default(),
            published: AtomicU64::new(0),
            heeded: (0..vcpus).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Destinations>> {
        self.destinations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called with the vCPUs paused, and not again before [`are_made`](Self::are_made).
    pub(crate) fn publish(&self, destinations: Destinations) {
        *self.lock() = Arc::new(destinations);
        self.published.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether every vCPU has heeded the last move.
    pub(crate) fn are_made(&self) -> bool {
        let published = self.published.load(Ordering::Acquire);
        self.heeded
            .iter()
            .all(|heeded| heeded.load(Ordering::Acquire) == published)
    }

    /// Whether there is a move that this vCPU has not heeded.
    pub(super) fn is_pending(&self, vcpu: usize) -> bool {
        self.published.load(Ordering::Acquire) != self.heeded[vcpu].load(Ordering::Relaxed)
    }

    /// Where the vCPU goes on that is at `rip`; the move counts as heeded.
    pub(super) fn heed(&self, vcpu: usize, rip: u64) -> Option<Destination> {
        let published = self.published.load(Ordering::Acquire);
        let destination = self.lock().get(&rip).copied();
        self.heeded[vcpu].store(published, Ordering::Release);
        destination
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_made_when_every_vcpu_has_heeded_it() {
        let moves = Moves::new(2);
        let destination = Destination {
            rip: 0x2000,
            pops_flags: true,
        };
        assert!(moves.are_made() && !moves.is_pending(0));
        moves.publish(Destinations::from([(0x1000, destination)]));
        assert!(!moves.are_made() && moves.is_pending(0) && moves.is_pending(1));
        assert_eq!(moves.heed(0, 0x1000), Some(destination));
        assert!(!moves.are_made() && !moves.is_pending(0));
        assert_eq!(moves.heed(1, 0x1001), None);
        assert!(moves.are_made());
    }
}
