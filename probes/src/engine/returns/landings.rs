//! Landings: where plants show a return, if the kernel patches the instruction at the return address.
//!
//! ```text
//!   call f                               the kernel writes a nop or a jump here, compares before, and would find a plant
//!   R:  nop  or  jmp target  ──┐
//!   plant: behind the nop      │         [rsp - 8] is the slot in both places: nothing was pushed or popped,
//!   …                          ▼         and no register has changed
//!   target:                    plant
//!
//!   call f
//!   R:  call g  (a static call)          g's entry: the stack pointer is at the slot, and the slot holds the address
//!                                        behind R by now (after a tail call from f to g, the slot holds R); no other
//!                                        register has changed
//! ```
//!
//! A jump label and an ftrace call change neither registers nor the stack. A plant at each of their successors therefore
//! shows a return, just like a plant at the return address. Between the return address and a landing the vCPU executes
//! nothing else: the first plant reached with this stack pointer is the plant of a landing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use address::{Gpa, Gva};
use arc_swap::ArcSwap;
use detour::Ring;
use introspect::insn::MAX_LENGTH_BYTES;
use text::GuestError;

/// The maximum number of remembered return addresses with landings elsewhere; the calls of further return addresses are
/// missed.
const MAX_REMEMBERED: usize = 1 << 16;

/// The stack pointer at a landing, relative to the slot of the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stack {
    /// Just above the slot, as behind the call.
    AboveSlot,
    /// At the slot, where a static call has pushed its own return address `pushed`. At a tail call to the same function, the
    /// stack pointer is at the slot too, but the followed call has not returned.
    AtSlot {
        /// The value on top of the stack.
        pushed: Gva,
    },
}

/// An address where a plant shows a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Landing {
    pub(crate) at: Gva,
    pub(crate) stack: Stack,
}

/// The landings of a return address; empty if no plant can show the return.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) landings: Arc<[Landing]>,
    /// The instructions that decide the landings by their bytes: static calls, and instructions that the kernel may rewrite
    /// at boot.
    pub(crate) read: Vec<Gpa>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    by_return_address: BTreeMap<Gva, Found>,
    /// Landings at which the stack pointer may be at the slot.
    at_slot: BTreeSet<Gva>,
    /// The instructions whose bytes have been read.
    pub(crate) read: BTreeSet<u64>,
}

impl Known {
    fn of(by_return_address: BTreeMap<Gva, Found>) -> Self {
        let found = || by_return_address.values();
        let landings = found().flat_map(|found| found.landings.iter());
        let at_slot = landings.filter(|landing| landing.stack != Stack::AboveSlot);
        Self {
            at_slot: at_slot.map(|landing| landing.at).collect(),
            read: found()
                .flat_map(|found| &found.read)
                .map(|gpa| gpa.0)
                .collect(),
            by_return_address,
        }
    }
}

/// No plant can show a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoLandings;

/// The landings of all return addresses without room for a plant.
#[derive(Debug, Default)]
pub(crate) struct Landings {
    /// Read at every entry and return of a followed call.
    known: ArcSwap<Known>,
}

impl Landings {
    /// The addresses of the landings of `returns_to`; without an entry, the return address itself.
    pub(crate) fn of(&self, returns_to: Gva) -> Vec<Gva> {
        match self.known.load().by_return_address.get(&returns_to) {
            Some(found) => found.landings.iter().map(|landing| landing.at).collect(),
            None => vec![returns_to],
        }
    }

    /// Whether `returns_to` has landings, and `is_planted` holds for each landing.
    pub(crate) fn are(&self, is_planted: impl Fn(Gva) -> bool, returns_to: Gva) -> bool {
        match self.known.load().by_return_address.get(&returns_to) {
            Some(found) => {
                let mut landings = found.landings.iter();
                !found.landings.is_empty() && landings.all(|landing| is_planted(landing.at))
            }
            None => is_planted(returns_to),
        }
    }

    /// Whether no plant can show a return to `returns_to`, as far as known: the answer holds until the instructions on the
    /// way change.
    pub(crate) fn are_none(&self, returns_to: Gva) -> bool {
        let known = self.known.load();
        let found = known.by_return_address.get(&returns_to);
        found.is_some_and(|found| found.landings.is_empty())
    }

    /// Whether a plant at `landing` shows a return to `returns_to`.
    pub(crate) fn shows(&self, landing: Landing, returns_to: Gva) -> bool {
        if landing.at == returns_to && landing.stack == Stack::AboveSlot {
            return true;
        }
        let known = self.known.load();
        let found = known.by_return_address.get(&returns_to);
        found.is_some_and(|found| found.landings.contains(&landing))
    }

    /// Whether the stack pointer may be at the slot of a call whose return a plant at `site` shows.
    pub(crate) fn may_be_at_slot(&self, site: Gva) -> bool {
        self.known.load().at_slot.contains(&site)
    }

    /// The functions with a landing at their entry, for returns to static calls.
    pub(crate) fn entries(&self) -> BTreeSet<Gva> {
        self.known.load().at_slot.clone()
    }

    /// The return addresses whose returns a plant at `site` shows, other than `site`.
    pub(crate) fn shown_by(&self, site: Gva) -> Vec<Gva> {
        let known = self.known.load();
        let shows = |found: &Found| found.landings.iter().any(|landing| landing.at == site);
        let shown = known.by_return_address.iter();
        let shown = shown.filter(|(_, found)| shows(found));
        shown.map(|(returns_to, _)| *returns_to).collect()
    }

    /// Remembers the landings of `returns_to`, if the limit allows another entry.
    pub(crate) fn remember(&self, returns_to: Gva, found: &Found) -> Result<(), NoLandings> {
        let mut has_room = false;
        self.known.rcu(|known| {
            let mut all = known.by_return_address.clone();
            has_room = all.len() < MAX_REMEMBERED;
            if has_room {
                all.insert(returns_to, found.clone());
            }
            Known::of(all)
        });
        if has_room { Ok(()) } else { Err(NoLandings) }
    }

    /// Forgets each return address that does not stay, or has a landing that does not: other code will be at the address.
    /// Calls with a forgotten return address exit at their entry.
    pub(crate) fn forget(
        &self,
        ring: Option<&Ring>,
        stays: impl Fn(Gva) -> bool,
    ) -> Result<(), GuestError> {
        let all_stay = |returns_to: Gva, found: &Found| {
            stays(returns_to) && found.landings.iter().all(|landing| stays(landing.at))
        };
        let known = self.known.load();
        let all = known.by_return_address.iter();
        for (returns_to, _) in all.filter(|(at, found)| !all_stay(**at, found)) {
            if let Some(ring) = ring {
                ring.forbid(*returns_to)?;
            }
        }
        self.retain(all_stay);
        Ok(())
    }

    /// Forgets the landings found by bytes that the kernel may have rewritten at boot.
    pub(crate) fn forget_read(&self) {
        self.retain(|_, found| found.read.is_empty());
    }

    fn retain(&self, stays: impl Fn(Gva, &Found) -> bool) {
        self.known.rcu(|known| {
            let mut all = known.by_return_address.clone();
            all.retain(|returns_to, found| stays(*returns_to, found));
            Known::of(all)
        });
    }

    /// Forgets the landings found by the `len` bytes at `gpa`, which the guest has written. Calls with a forgotten return
    /// address exit at their entry.
    pub(crate) fn guest_has_written(
        &self,
        ring: Option<&Ring>,
        gpa: Gpa,
        len: usize,
    ) -> Result<(), GuestError> {
        let longest = MAX_LENGTH_BYTES as u64 - 1;
        let touched = gpa.0.saturating_sub(longest)..gpa.0.saturating_add(len as u64);
        let known = self.known.load();
        if known.read.range(touched.clone()).next().is_none() {
            return Ok(());
        }
        let is_touched = |found: &Found| found.read.iter().any(|gpa| touched.contains(&gpa.0));
        let all = known.by_return_address.iter();
        for (returns_to, _) in all.filter(|(_, found)| is_touched(found)) {
            if let Some(ring) = ring {
                ring.forbid(*returns_to)?;
            }
        }
        self.retain(|_, found| !is_touched(found));
        Ok(())
    }
}
