//! Return sites: the return addresses of followed calls. A site is planted when the first call that returns there is entered. If
//! the kernel patches the instruction there, the instructions behind it are planted (`landings`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use address::Gva;
use arc_swap::ArcSwap;

use crate::engine::returns::landings::Landings;

/// The maximum number of remembered return addresses without room for a plant; each further one costs a pause at each call. The
/// addresses come from the guest, which may invent any number of them.
const MAX_REMEMBERED_SITES: usize = 4096;
/// The maximum number of planted return sites; calls with other return sites are missed, and counted.
pub(crate) const MAX_PLANTED_SITES: usize = 1 << 16;

/// The known return sites.
#[derive(Debug, Default)]
pub(crate) struct ReturnSites {
    /// Sites planted, or to be planted: read whenever plants are reconciled.
    pub(crate) sites: Mutex<BTreeSet<Gva>>,
    /// Return addresses of calls entered since the last check of plants.
    pub(crate) asked: Mutex<BTreeSet<Gva>>,
    /// The landings of return addresses without room for a plant.
    pub(crate) landings: Landings,
    /// Return addresses where no plant is possible; read at every entry of a followed call.
    pub(crate) impossible: ArcSwap<BTreeSet<Gva>>,
    /// Whether a probe needs more of a return than a record holds.
    pub(crate) must_exit: AtomicBool,
}

impl ReturnSites {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeSet<Gva>> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether each return has to exit.
    pub(crate) fn must_exit(&self) -> bool {
        self.must_exit.load(Ordering::Acquire)
    }

    /// Sets whether each return has to exit. The other vCPUs are paused. Returns whether the setting has changed.
    pub(crate) fn set_must_exit(&self, must_exit: bool) -> bool {
        self.must_exit.swap(must_exit, Ordering::AcqRel) != must_exit
    }

    pub(crate) fn all(&self) -> Vec<Gva> {
        self.lock().iter().copied().collect()
    }

    pub(crate) fn has(&self, site: Gva) -> bool {
        self.lock().contains(&site)
    }

    /// Whether there are sites outside of `range`.
    pub(crate) fn has_outside(&self, range: &Range<Gva>) -> bool {
        let sites = self.lock();
        sites.range(..range.start).next().is_some() || sites.range(range.end..).next().is_some()
    }

    pub(crate) fn ask(&self, returns_to: Gva) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.insert(returns_to);
    }

    pub(crate) fn take_asked(&self) -> BTreeSet<Gva> {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rules `returns_to` out: calls with this return address are missed from now on.
    pub(crate) fn rule_out(&self, returns_to: Gva) {
        self.lock().remove(&returns_to);
        self.impossible.rcu(|known| {
            let mut known = known.as_ref().clone();
            if known.len() < MAX_REMEMBERED_SITES {
                known.insert(returns_to);
            }
            known
        });
    }

    /// Allows plants at the changed sites again: the kernel has changed the code there.
    pub(crate) fn allow(&self, changed: impl Fn(Gva) -> bool) {
        self.impossible.rcu(|known| {
            let mut known = known.as_ref().clone();
            known.retain(|site| !changed(*site));
            known
        });
    }

    /// Forgets the sites that do not stay, and returns them.
    pub(crate) fn retain(&self, stays: impl Fn(Gva) -> bool) -> Vec<Gva> {
        self.lock().extract_if(.., |site| !stays(*site)).collect()
    }
}
