//! The counters of a probe: hits, exits, followed calls and missed executions.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Missed;

/// The counters of a probe. Any vCPU writes the counters; hits that a detour counts are added when the detour ends.
#[derive(Debug, Default)]
pub(crate) struct ProbeCounters {
    hits: AtomicU64,
    exits: AtomicU64,
    returns: AtomicU64,
    in_flight: AtomicUsize,
    missed: [AtomicU64; Missed::ALL.len()],
}

/// Adds `times` to `count`, which ends at the greatest number: a guest's kernel can write any number to the counters of detours.
fn add(count: &AtomicU64, times: u64) {
    // The closure always returns a number.
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
        Some(now.saturating_add(times))
    });
}

impl ProbeCounters {
    /// Counts a hit with an exit.
    pub(crate) fn count_hit(&self) {
        add(&self.hits, 1);
        self.count_exit();
    }

    /// Counts a hit from a detour's record, without an exit.
    pub(crate) fn count_recorded(&self) {
        add(&self.hits, 1);
    }

    /// Adds hits that a detour has counted.
    pub(super) fn add_hits(&self, times: u64) {
        add(&self.hits, times);
    }

    /// The number of hits, without the hits that a detour counts.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// The number of returns of followed calls.
    pub(super) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Relaxed)
    }

    /// The number of followed calls that have not returned.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The number of executions missed for the reason `why`.
    pub(crate) fn missed_for(&self, why: Missed) -> u64 {
        let index = Missed::ALL.iter().position(|(known, _)| *known == why);
        index.map_or(0, |index| self.missed[index].load(Ordering::Relaxed))
    }

    /// The number of missed executions.
    pub(crate) fn missed_in_all(&self) -> u64 {
        let each = self.missed.iter();
        each.fold(0, |all, missed| {
            all.saturating_add(missed.load(Ordering::Relaxed))
        })
    }

    /// The number of exits.
    pub(crate) fn exits(&self) -> u64 {
        self.exits.load(Ordering::Relaxed)
    }

    /// Counts an exit that is no hit: the end of an instruction executed in place, a return.
    pub(crate) fn count_exit(&self) {
        self.exits.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins to follow a call. `false` if `maxactive` calls are in flight.
    pub(crate) fn begin_call(&self, maxactive: usize) -> bool {
        self.in_flight
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                (now < maxactive).then_some(now + 1)
            })
            .is_ok()
    }

    /// Counts the return of a followed call.
    pub(crate) fn end_call(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.returns.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends following a call whose return will not be seen.
    pub(crate) fn lose_call(&self, why: Missed) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.miss(why);
    }

    /// Counts an execution that is not reported, or a call that is not followed.
    pub(crate) fn miss(&self, why: Missed) {
        self.add_missed(why, 1);
    }

    /// Adds `times` to the executions missed for the reason `why`.
    pub(crate) fn add_missed(&self, why: Missed, times: u64) {
        if let Some(index) = Missed::ALL.iter().position(|(known, _)| *known == why) {
            add(&self.missed[index], times);
        }
    }
}
