//! What the probes make of interest to the engine: counted at each change, so that a change costs what it changes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Engine;
use crate::ProbeState;
use crate::registry::{Interests, Probe, Purpose};

/// How many probes there are that make something of interest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    calls: usize,
    exits_at_returns: usize,
    modules: usize,
    plants: usize,
}

impl Totals {
    fn count(&mut self, interests: Interests, is_more: bool) {
        let each = [
            (interests.calls, &mut self.calls),
            (interests.exits_at_returns, &mut self.exits_at_returns),
            (interests.modules, &mut self.modules),
            (interests.plants, &mut self.plants),
        ];
        for (_, total) in each.into_iter().filter(|(is_one, _)| *is_one) {
            *total = match is_more {
                true => *total + 1,
                false => total.saturating_sub(1),
            };
        }
    }
}

/// Changed with the vCPUs paused.
#[derive(Debug, Default)]
pub(super) struct Counted(Mutex<Totals>);

impl Counted {
    fn lock(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which milestones are of interest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interest {
    /// Some probe follows calls to their return.
    pub(super) calls: bool,
    /// Some probe is in a module, or followed calls return to one.
    pub(super) modules: bool,
    /// There may be plants that the kernel must not read.
    pub(super) plants: bool,
    /// Some probe has to be told of a return while it happens.
    pub(super) exits_at_returns: bool,
}

/// What a registered probe makes of interest.
fn interests(probe: &Probe) -> Interests {
    let can_be_planted = !matches!(probe.state(), ProbeState::Gone | ProbeState::Refused);
    let follows = match &probe.purpose {
        Purpose::Milestone(_) => return Interests::default(),
        Purpose::Return(purpose) => Some(purpose),
        _ => None,
    };
    Interests {
        calls: follows.is_some(),
        exits_at_returns: can_be_planted
            && follows.is_some_and(|purpose| purpose.action.needs_exit()),
        modules: probe.in_module.is_some(),
        plants: can_be_planted && probe.is_enabled(),
    }
}

impl Engine {
    /// Counts a registered probe for what it is now.
    pub(super) fn count_interest(&self, probe: &Probe) {
        self.replace_interest(probe, interests(probe));
    }

    /// Counts a probe no more.
    pub(super) fn forget_interest(&self, probe: &Probe) {
        self.replace_interest(probe, Interests::default());
    }

    fn replace_interest(&self, probe: &Probe, now: Interests) {
        let before = probe.replace_interests(now);
        if before != now {
            let mut totals = self.counted.lock();
            totals.count(before, false);
            totals.count(now, true);
        }
    }

    /// What the probes make of interest.
    pub(super) fn interest(&self) -> Interest {
        let totals = *self.counted.lock();
        #[cfg(test)]
        self.check_totals(totals);
        Interest {
            calls: totals.calls > 0,
            modules: self.watches_modules(),
            plants: totals.plants > 0 && self.boot_patched.get(),
            exits_at_returns: totals.exits_at_returns > 0,
        }
    }

    /// Whether there may be plants in modules: some probe is in one, or followed calls return to one.
    pub(super) fn watches_modules(&self) -> bool {
        self.counted.lock().modules > 0 || self.returns_to_modules()
    }

    /// The totals are those that a look at all probes would give.
    #[cfg(test)]
    fn check_totals(&self, totals: Totals) {
        let mut expected = Totals::default();
        for probe in self.probes.load().iter() {
            expected.count(interests(probe), true);
        }
        assert_eq!(totals, expected);
    }
}
