//! One probe: its counters, and how it fares.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use introspect::Gva;

use super::{Interests, Missed, ProbeId, Purpose, ReturnAction};
use crate::applied::Filtered;
use crate::detour::{Keeps, Words};
use crate::guest::GuestError;
use crate::program::{AggregateResult, Filter};
use crate::resolve::Place;
use crate::{Hex, Location, ProbeSpec, ProbeState, ProbeSummary, Tier};

/// One probe. Counters are written by any vCPU; the state by whoever holds the vCPUs paused.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) id: ProbeId,
    pub(crate) name: Arc<str>,
    pub(crate) purpose: Purpose,
    /// Which of its hits count; all without.
    pub(crate) filter: Option<Filtered>,
    /// Where it is: nowhere for one that was refused, or whose module is not loaded.
    place: ArcSwapOption<Place>,
    /// For a probe in a module: what it is called there.
    pub(crate) in_module: Option<ProbeSpec>,
    enabled: AtomicBool,
    /// Where its plant, or its debug register, is; 0 for nowhere.
    planted: AtomicU64,
    hits: AtomicU64,
    exits: AtomicU64,
    returns: AtomicU64,
    in_flight: AtomicUsize,
    missed: [AtomicU64; Missed::ALL.len()],
    tier: AtomicU8,
    /// A jump stands for its plant.
    optimised: AtomicBool,
    status: Mutex<Status>,
    /// For what the engine counts it.
    interests: Mutex<Interests>,
    /// Where a detour counts for it.
    counted: Mutex<Option<Words>>,
}

/// What a detour has counted, or what it and exits have.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    hits: u64,
    /// Records that there was no room for.
    dropped: u64,
}

#[derive(Clone, Debug)]
struct Status {
    state: ProbeState,
    reason: Option<String>,
    ip: Option<Hex>,
    unoptimised: Option<String>,
}

const TIER_NONE: u8 = 0;
const TIER_EMULATED: u8 = 1;
const TIER_RELOCATED: u8 = 2;
const TIER_STEPPED: u8 = 3;

impl Probe {
    pub(crate) fn new(
        id: ProbeId,
        name: Arc<str>,
        purpose: Purpose,
        place: Option<Place>,
        enabled: bool,
    ) -> Self {
        Self {
            id,
            name,
            purpose,
            filter: None,
            place: ArcSwapOption::from_pointee(place),
            in_module: None,
            enabled: AtomicBool::new(enabled),
            planted: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            exits: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            missed: [const { AtomicU64::new(0) }; Missed::ALL.len()],
            tier: AtomicU8::new(TIER_NONE),
            optimised: AtomicBool::new(false),
            counted: Mutex::default(),
            interests: Mutex::default(),
            status: Mutex::new(Status {
                state: ProbeState::Pending,
                reason: None,
                ip: None,
                unoptimised: None,
            }),
        }
    }

    /// One of those that a glob stands for.
    pub(crate) fn matched(&self, name: &Arc<str>) -> Self {
        let (name, purpose) = (Arc::clone(name), self.purpose.for_another());
        let filter = self.filter.as_ref().map(|filtered| filtered.filter.clone());
        Self::new(self.id, name, purpose, None, self.is_enabled()).filtered(filter)
    }

    /// One of whose hits only those count that `filter` lets by.
    pub(crate) fn filtered(self, filter: Option<Filter>) -> Self {
        Self {
            filter: filter.map(Filtered::from),
            ..self
        }
    }

    /// One whose place is known when a module is loaded.
    pub(crate) fn awaiting(self, spec: ProbeSpec) -> Self {
        Self {
            in_module: Some(spec),
            ..self
        }
    }

    /// For what the engine counts it from now on. Returns for what it did.
    pub(crate) fn replace_interests(&self, now: Interests) -> Interests {
        let mut interests = self
            .interests
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *interests, now)
    }

    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        self.place.load_full()
    }

    pub(crate) fn set_place(&self, place: Option<Place>) {
        self.place.store(place.map(Arc::new));
    }

    /// Whether it stands for whatever matches in a module.
    pub(crate) fn is_glob(&self) -> bool {
        self.in_module
            .as_ref()
            .is_some_and(|spec| matches!(spec.location, Location::Glob(_)))
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    pub(crate) fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Release);
    }

    /// Where it is planted.
    pub(crate) fn planted_at(&self) -> Option<Gva> {
        Some(Gva(self.planted.load(Ordering::Acquire))).filter(|at| *at != Gva(0))
    }

    pub(crate) fn set_planted(&self, at: Option<Gva>) {
        self.planted
            .store(at.map_or(0, |at| at.0), Ordering::Release);
    }

    /// Whether its filter has let by what was executed last on `vcpu`. On its thread, behind the hit.
    pub(crate) fn has_hit(&self, vcpu: usize) -> bool {
        let mut filter = self.filter.iter();
        !filter.any(|filtered| filtered.has_turned_away(vcpu))
    }

    /// Whether nothing is done at its hits but to count each of them.
    pub(crate) fn only_counts(&self) -> bool {
        self.filter.is_none() && matches!(self.purpose, Purpose::Count)
    }

    /// One hit has been handled, after one exit.
    pub(crate) fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.count_exit();
    }

    fn counted(&self) -> MutexGuard<'_, Option<Words>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hits are counted in `words` from now on, beside those that are handled. The other vCPUs are paused.
    ///
    /// # Errors
    ///
    /// When they cannot be written; then nothing has changed.
    pub(crate) fn count_in(&self, words: Words) -> Result<(), GuestError> {
        let mut counted = self.counted();
        if counted.as_ref() == Some(&words) {
            // They have counted on for whoever was in the detour when the jump went.
            return Ok(());
        }
        match &self.purpose {
            Purpose::Aggregate(aggregated) => words.write(&aggregated.aggregate.initial())?,
            _ => words.write(&[0])?,
        }
        self.end_counting(&mut counted);
        *counted = Some(words);
        Ok(())
    }

    /// Hits are counted in no detour any more. The other vCPUs are paused.
    pub(crate) fn count_in_none(&self) {
        self.end_counting(&mut self.counted());
    }

    /// The same, if they are counted in these words.
    pub(crate) fn stop_counting_in(&self, words: &Words) {
        let mut counted = self.counted();
        if counted.as_ref() == Some(words) {
            self.end_counting(&mut counted);
        }
    }

    fn end_counting(&self, counted: &mut Option<Words>) {
        if let Some(words) = counted.take() {
            let in_detour = self.in_detour(&words);
            self.hits.fetch_add(in_detour.hits, Ordering::Relaxed);
            self.count_missed(Missed::RingFull, in_detour.dropped);
            if let Purpose::Aggregate(aggregated) = &self.purpose {
                aggregated.merge(&words.read());
            }
        }
    }

    /// What the words of a detour say.
    fn in_detour(&self, words: &Words) -> Counts {
        let count = words.count();
        let (hits, dropped) = match &self.purpose {
            Purpose::Trace => (0, count),
            // A call is entered, whether it is followed or not.
            Purpose::Return(_) => (count, count),
            _ => (count, 0),
        };
        Counts { hits, dropped }
    }

    /// Hits, and records that there was no room for: those that were handled, and those that a detour has counted. Both
    /// are read under the lock, so that what [`end_counting`](Self::end_counting) moves is in one of them.
    fn counts(&self) -> Counts {
        let counted = self.counted();
        let in_detour = counted.as_ref().map(|words| self.in_detour(words));
        let in_detour = in_detour.unwrap_or_default();
        Counts {
            hits: self
                .hits
                .load(Ordering::Relaxed)
                .wrapping_add(in_detour.hits),
            dropped: self
                .missed_for(Missed::RingFull)
                .wrapping_add(in_detour.dropped),
        }
    }

    fn missed_for(&self, why: Missed) -> u64 {
        let index = Missed::ALL.iter().position(|(known, _)| *known == why);
        index.map_or(0, |index| self.missed[index].load(Ordering::Relaxed))
    }

    /// What has become of the values, those included that a detour has added.
    fn result(&self) -> Option<AggregateResult> {
        let aggregated = self.purpose.aggregated()?;
        let counted = self.counted();
        let values = counted
            .as_ref()
            .filter(|_| matches!(self.purpose, Purpose::Aggregate(_)));
        Some(aggregated.result(values.map(Words::read).as_deref()))
    }

    /// A hit has been taken from a record that a detour left: no exit.
    pub(crate) fn count_recorded(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// What a detour has to keep of its hits, if it can do what is wanted of them.
    pub(crate) fn kept_by_detour(&self) -> Option<Keeps> {
        match &self.purpose {
            Purpose::Count => Some(Keeps::Count),
            Purpose::Trace => Some(Keeps::Records),
            Purpose::Aggregate(aggregated) => Some(Keeps::Aggregate(aggregated.aggregate)),
            // An exit for each hit is what its plant takes; it is those that the filter turns away that need none.
            Purpose::Handle(handler) if self.filter.is_some() && !handler.0.has_post() => {
                Some(Keeps::Exits)
            }
            Purpose::Return(returns) if !matches!(returns.action, ReturnAction::Handle(_)) => {
                Some(Keeps::Calls)
            }
            _ => None,
        }
    }

    /// A jump stands for its plant, or does so no more.
    pub(crate) fn set_optimised(&self, optimised: bool) {
        self.optimised.store(optimised, Ordering::Relaxed);
    }

    fn tier(&self) -> Option<Tier> {
        if self.optimised.load(Ordering::Relaxed) {
            return Some(Tier::Optimised);
        }
        match self.tier.load(Ordering::Relaxed) {
            TIER_EMULATED => Some(Tier::Emulated),
            TIER_RELOCATED => Some(Tier::Relocated),
            TIER_STEPPED => Some(Tier::Stepped),
            _ => None,
        }
    }

    /// The exits so far.
    pub(crate) fn exits(&self) -> u64 {
        self.exits.load(Ordering::Relaxed)
    }

    /// An exit for something else than a hit: the end of an instruction that was executed in place, a return.
    pub(crate) fn count_exit(&self) {
        self.exits.fetch_add(1, Ordering::Relaxed);
    }

    /// A call is to be followed: `false` when as many as `maxactive` are already.
    pub(crate) fn begin_call(&self, maxactive: usize) -> bool {
        self.in_flight
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                (now < maxactive).then_some(now + 1)
            })
            .is_ok()
    }

    /// A call that was followed has returned.
    pub(crate) fn end_call(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.returns.fetch_add(1, Ordering::Relaxed);
    }

    /// A call that was followed will not be any more.
    pub(crate) fn lose_call(&self, why: Missed) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.miss(why);
    }

    /// An execution is not told, or a call not followed.
    pub(crate) fn miss(&self, why: Missed) {
        self.count_missed(why, 1);
    }

    fn count_missed(&self, why: Missed, times: u64) {
        if let Some(index) = Missed::ALL.iter().position(|(known, _)| *known == why) {
            self.missed[index].fetch_add(times, Ordering::Relaxed);
        }
    }

    /// How the vCPU got past the instruction. The costlier tier stays: it is what the user should know.
    pub(crate) fn passed_by(&self, tier: Tier) {
        let value = match tier {
            // Nobody passes by it: the guest does not exit.
            Tier::Optimised => TIER_NONE,
            Tier::Emulated => TIER_EMULATED,
            Tier::Relocated => TIER_RELOCATED,
            Tier::Stepped => TIER_STEPPED,
        };
        self.tier.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn set_state(&self, state: ProbeState, reason: Option<String>) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.state = state;
        status.reason = reason;
    }

    pub(crate) fn set_armed(&self, ip: Hex) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.state = ProbeState::Armed;
        status.reason = None;
        status.ip = Some(ip);
    }

    /// Why its hits exit, although a detour could do what is wanted of them.
    pub(crate) fn set_unoptimised(&self, why: Option<String>) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.unoptimised = why;
    }

    pub(crate) fn state(&self) -> ProbeState {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .state
    }

    pub(crate) fn summary(&self) -> ProbeSummary {
        let status = self
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let counts = self.counts();
        let missed = Missed::ALL.iter().filter_map(|(why, name)| {
            let count = match why {
                Missed::RingFull => counts.dropped,
                why => self.missed_for(*why),
            };
            (count > 0).then(|| ((*name).to_owned(), count))
        });
        let follows = matches!(self.purpose, Purpose::Return(_));
        ProbeSummary {
            probe: self.name.to_string(),
            ip: status.ip,
            hits: counts.hits,
            missed: missed.collect::<BTreeMap<_, _>>(),
            tier: self.tier(),
            exits: self.exits.load(Ordering::Relaxed),
            returns: follows.then(|| self.returns.load(Ordering::Relaxed)),
            in_flight: follows.then(|| self.in_flight.load(Ordering::Relaxed) as u64),
            state: status.state,
            reason: status.reason,
            unoptimised: status.unoptimised,
            filter: self
                .filter
                .as_ref()
                .map(|filtered| filtered.filter.to_string()),
            result: self.result(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::fake::FakeMemory;

    /// One thread reads while another moves what a detour has counted to what exits have.
    #[test]
    fn hits_never_go_back_while_a_detour_stops_counting() {
        const ROUNDS: u64 = 20_000;
        let words = Words::of(Arc::new(FakeMemory::new(vec![0; 16])));
        let probe = Probe::new(ProbeId(1), "probe".into(), Purpose::Count, None, true);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = 0;
                while !is_done.load(Ordering::Acquire) {
                    let hits = probe.summary().hits;
                    assert!(hits >= last, "{hits} after {last}");
                    last = hits;
                }
            });
            for _ in 0..ROUNDS {
                probe.count_in(words.clone()).expect("written");
                words.write(&[7]).expect("written");
                probe.count_in_none();
                if reader.is_finished() {
                    break;
                }
            }
            is_done.store(true, Ordering::Release);
        });
        assert_eq!(probe.summary().hits, 7 * ROUNDS);
    }
}
