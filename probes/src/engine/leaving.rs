//! The detour region is given back when every plant goes, or, if somebody is in it who cannot be moved, a little later.
//!
//! ```text
//!  the knob turned off ──▶ left ──▶ given back
//!                          │  ▲
//!           somebody stays ▼  │ what kept it has gone: the vCPUs are paused, and it is tried again
//!                         kept
//!                          │
//!  the knob turned on ◀────┴──▶ as often as is reasonable: it stays, and a note says so
//! ```
//!
//! No jump leads to it any more, so a vCPU is out of it in no time, and a task that has been preempted there when it next
//! runs. Each try searches the guest's memory while the guest stands. So there are few, and none while what kept the region
//! is still to be seen.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Engine;
use crate::detour::DetourError;
use crate::guest::Paused;

/// The distance between the first two tries; it doubles with each.
const FIRST_DISTANCE: Duration = Duration::from_millis(20);
/// A try costs the guest at most one part in so many of its time.
const SHARE: u32 = 20;
const MOST_TRIES: u32 = 8;
/// A region that is still kept then is told of.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// Whether a region is to be left, and could not be yet.
#[derive(Debug, Default)]
pub(super) struct Leaving(Mutex<Option<Tries>>);

#[derive(Clone, Copy, Debug)]
struct Tries {
    began: Instant,
    made: u32,
    /// Not before this.
    next: Instant,
    told: bool,
}

impl Tries {
    const fn new(began: Instant) -> Self {
        Self {
            began,
            made: 0,
            next: began,
            told: false,
        }
    }

    /// One that began at `began` has just failed.
    fn add(&mut self, began: Instant) {
        let now = Instant::now();
        let distance = FIRST_DISTANCE * 2u32.saturating_pow(self.made);
        self.next = now + distance.max((now - began) * SHARE);
        self.made += 1;
    }

    /// Whether it is time to tell of it.
    fn tells(&mut self, now: Instant) -> bool {
        let tells = !self.told && now >= self.began + TOLD_AFTER;
        self.told |= tells;
        tells
    }
}

impl Leaving {
    fn lock(&self) -> MutexGuard<'_, Option<Tries>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Takes the region away when no instruction that has a copy or a detour is probed. That searches all of the guest's
    /// memory while it stands, so it is done when every plant goes, and not when one probe does.
    pub(super) fn give_detour_back(&self, paused: &dyn Paused) {
        let table = self.table.load();
        let began = Instant::now();
        let needs = |at| table.at(at).is_some();
        let close = || self.close_int3(paused);
        let given = self
            .detour
            .give_back(paused, self.memory.as_ref(), needs, close);
        match given {
            Ok(ring) => {
                *self.leaving.lock() = None;
                if let Some(ring) = ring {
                    self.take_out_last_records(&ring);
                }
            }
            Err(DetourError::NotLeft) => self
                .leaving
                .lock()
                .get_or_insert(Tries::new(began))
                .add(began),
            Err(error) => self.note(None, format!("the detour region stays: {error}")),
        }
    }

    /// Somebody needs the region again.
    pub(super) fn keep_detour(&self) {
        *self.leaving.lock() = None;
    }

    /// Whether something is to be done about the region with the vCPUs paused: [`tend_region`](Self::tend_region). To be
    /// asked every now and then.
    pub(crate) fn region_needs_pause(&self, now: Instant) -> bool {
        self.has_changed_entry() || self.may_leave_detour(now)
    }

    /// See [`region_needs_pause`](Self::region_needs_pause).
    pub(crate) fn tend_region(&self, paused: &dyn Paused) {
        self.lose_changed_region(paused);
        self.leave_detour(paused);
    }

    /// Whether the region that was to be left, and could not be, may have been left by now.
    fn may_leave_detour(&self, now: Instant) -> bool {
        let (tells, is_time) = match self.leaving.lock().as_mut() {
            Some(tries) => (
                tries.tells(now),
                tries.made < MOST_TRIES && now >= tries.next,
            ),
            None => return false,
        };
        if tells {
            let error = DetourError::NotLeft;
            self.note(None, format!("the detour region stays: {error}"));
        }
        is_time && self.detour.may_have_been_left(self.memory.as_ref())
    }

    /// Tries once more to leave the region, unless it has come to be needed again.
    fn leave_detour(&self, paused: &dyn Paused) {
        let is_wanted = self.leaving.lock().is_some();
        if is_wanted {
            self.give_detour_back(paused);
        }
    }

    /// Whether there is memory of ours that the guest's kernel can execute: from the first jump or copy on, until every
    /// plant has gone and nobody is in it.
    pub fn has_detour_region(&self) -> bool {
        self.detour.is_laid()
    }
}
