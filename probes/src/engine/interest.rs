//! Interests: the kernel event probes and the exits at returns that the registered probes require. The engine updates the
//! counts at each change, so the cost of a change does not depend on the number of probes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use events::ProbeState;

use crate::engine::probe_list::ProbeList;
use crate::registry::{Interests, Probe, Purpose};

/// The number of probes with each interest.
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

/// The counts of all registered probes. Changed with the vCPUs paused.
#[derive(Debug, Default)]
pub(crate) struct Counted(Mutex<Totals>);

impl Counted {
    fn lock(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The present requirements of all probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Some probe follows calls to their return.
    pub(crate) calls: bool,
    /// Some probe is in a module, or followed calls return to a module.
    pub(crate) modules: bool,
    /// Plants are possible that the kernel must not read.
    pub(crate) plants: bool,
    /// Some probe needs an exit at each return.
    pub(crate) exits_at_returns: bool,
}

/// The interests of a registered probe.
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

impl ProbeList {
    /// Counts a registered probe by its present interests.
    pub(crate) fn count_interest(&self, probe: &Probe) {
        self.replace_interest(probe, interests(probe));
    }

    /// Removes a probe from the counts.
    pub(crate) fn forget_interest(&self, probe: &Probe) {
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

    /// Computes the present requirements of all probes.
    pub(crate) fn interest(&self) -> Interest {
        let totals = *self.counted.lock();
        #[cfg(test)]
        self.check_totals(totals);
        Interest {
            calls: totals.calls > 0,
            modules: self.watches_modules(),
            plants: totals.plants > 0 && self.running.boot_patched.get(),
            exits_at_returns: totals.exits_at_returns > 0,
        }
    }

    /// Whether plants in modules are possible: some probe is in a module, or followed calls return to a module.
    pub(crate) fn watches_modules(&self) -> bool {
        self.counted.lock().modules > 0 || self.returns_to_modules()
    }

    /// Checks the totals against a count of all probes.
    #[cfg(test)]
    fn check_totals(&self, totals: Totals) {
        let mut expected = Totals::default();
        for probe in self.list.load().iter() {
            expected.count(interests(probe), true);
        }
        assert_eq!(totals, expected);
    }
}
