//! Moving vCPUs that are paused: memory that one may be executing from is about to go.
//!
//! A vCPU's registers are its own thread's. So a move is published while the vCPUs are paused, and each carries it out
//! itself before it next enters the guest; [`Moves::are_made`] tells when all have.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvm_bindings::kvm_regs;

/// Where a vCPU goes on instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its RIP.
    pub rip: u64,
    /// What it was executing has pushed these, the last one first: they come off the stack.
    pub pops: &'static [Pop],
    /// It is handling an exception, and may be to leave it.
    pub leaves: Option<Leaves>,
}

/// An exception of ring 0 that is left as if its handler had returned, if it came from certain places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// How far above the stack pointer the frame is, bytes, when everything has come off the stack that is to.
    pub frame: u64,
    /// For each RIP that such a frame has, where the vCPU goes on.
    pub to: Arc<BTreeMap<u64, u64>>,
}

/// What a vCPU that is moved takes from its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum Pop {
    Rax,
    Rcx,
    Rdx,
    /// As `popf` in ring 0 would.
    Flags,
}

/// What `popf` in ring 0 takes from the stack: not VM, which no 64-bit guest can be entered with, and not RF.
const POPPED_FLAGS: u64 = 0x24_7fd5;

impl Destination {
    /// The registers as they are there. `word` reads the stack; where none is, what would be popped stays.
    #[must_use]
    pub fn registers(
        &self,
        mut regs: kvm_regs,
        mut word: impl FnMut(u64) -> Option<u64>,
    ) -> kvm_regs {
        regs.rip = self.rip;
        for pop in self.pops {
            let Some(value) = word(regs.rsp) else { break };
            match pop {
                Pop::Rax => regs.rax = value,
                Pop::Rcx => regs.rcx = value,
                Pop::Rdx => regs.rdx = value,
                Pop::Flags => regs.rflags = value & POPPED_FLAGS | regs.rflags & !POPPED_FLAGS,
            }
            regs.rsp = regs.rsp.wrapping_add(8);
        }
        match &self.leaves {
            Some(leaves) => leaves.registers(regs, word),
            None => regs,
        }
    }
}

/// Bits 1:0 of a selector: the privilege level.
const SELECTOR_RPL: u64 = 3;

impl Leaves {
    /// The registers behind the exception, if it is one that is left.
    fn registers(&self, regs: kvm_regs, mut word: impl FnMut(u64) -> Option<u64>) -> kvm_regs {
        let frame = regs.rsp.wrapping_add(self.frame);
        let mut at = |index: u64| word(frame.wrapping_add(8 * index));
        let (Some(rip), Some(cs), Some(flags), Some(rsp)) = (at(0), at(1), at(2), at(3)) else {
            return regs;
        };
        match self.to.get(&rip) {
            Some(&rip) if cs & SELECTOR_RPL == 0 => kvm_regs {
                rip,
                rsp,
                rflags: flags & POPPED_FLAGS | regs.rflags & !POPPED_FLAGS,
                ..regs
            },
            _ => regs,
        }
    }
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
        let destination = self.lock().get(&rip).cloned();
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
            pops: &[Pop::Flags],
            leaves: None,
        };
        assert!(moves.are_made() && !moves.is_pending(0));
        moves.publish(Destinations::from([(0x1000, destination.clone())]));
        assert!(!moves.are_made() && moves.is_pending(0) && moves.is_pending(1));
        assert_eq!(moves.heed(0, 0x1000), Some(destination));
        assert!(!moves.are_made() && !moves.is_pending(0));
        assert_eq!(moves.heed(1, 0x1001), None);
        assert!(moves.are_made());
    }

    #[test]
    fn what_was_pushed_comes_off_the_stack() {
        let destination = Destination {
            rip: 0x2000,
            pops: &[Pop::Rcx, Pop::Rax, Pop::Flags],
            leaves: None,
        };
        let regs = kvm_regs {
            rsp: 0x100,
            rflags: 0x2,
            rdx: 9,
            ..kvm_regs::default()
        };
        let stack = |at: u64| match at {
            0x100 => Some(0x11),
            0x108 => Some(0x22),
            0x110 => Some(0x247),
            _ => None,
        };
        let moved = destination.registers(regs, stack);
        assert_eq!((moved.rip, moved.rsp, moved.rdx), (0x2000, 0x118, 9));
        assert_eq!((moved.rcx, moved.rax, moved.rflags), (0x11, 0x22, 0x247));
        let nowhere = destination.registers(regs, |_| None);
        assert_eq!((nowhere.rip, nowhere.rsp), (0x2000, 0x100));
    }

    #[test]
    fn an_exception_is_left_that_came_from_where_it_is_said() {
        const SYSTEM: [u64; 5] = [0x1001, 0x10, 0x246, 0x4000, 0x18];
        let leaving = |frame: [u64; 5], pops: &'static [Pop]| {
            let destination = Destination {
                rip: 0x2000,
                pops,
                leaves: Some(Leaves {
                    frame: 8,
                    to: Arc::new(BTreeMap::from([(0x1001, 0x1000)])),
                }),
            };
            let regs = kvm_regs {
                rsp: 0x100,
                rflags: 0x2,
                ..kvm_regs::default()
            };
            let base = 0x108 + 8 * pops.len() as u64;
            destination.registers(regs, |at| {
                let index = usize::try_from(at.checked_sub(base)? / 8).ok()?;
                frame.get(index).copied()
            })
        };
        let left = leaving(SYSTEM, &[]);
        assert_eq!((left.rip, left.rsp, left.rflags), (0x1000, 0x4000, 0x246));
        // One of another place, and one of a program.
        let [rip, _, rest @ ..] = SYSTEM;
        for other in [
            [0x1002, 0x10, rest[0], rest[1], rest[2]],
            [rip, 0x33, rest[0], rest[1], rest[2]],
        ] {
            let stays = leaving(other, &[]);
            assert_eq!((stays.rip, stays.rsp, stays.rflags), (0x2000, 0x100, 0x2));
        }
    }
}
