//! Interests: the kernel event probes and the exits at returns that the registered probes require. The engine updates the
//! counts at each change, so the cost of a change does not depend on the number of probes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use events::ProbeState;

use crate::registry::{Interests, Probe, Purpose};

/// The number of probes with each interest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) calls: usize,
    pub(crate) exits_at_returns: usize,
    pub(crate) modules: usize,
    pub(crate) plants: usize,
    pub(crate) files: usize,
    pub(crate) tasks: usize,
}

impl Totals {
    pub(crate) fn count(&mut self, interests: Interests, is_more: bool) {
        let each = [
            (interests.calls, &mut self.calls),
            (interests.exits_at_returns, &mut self.exits_at_returns),
            (interests.modules, &mut self.modules),
            (interests.plants, &mut self.plants),
            (interests.files, &mut self.files),
            (interests.tasks, &mut self.tasks),
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
    pub(crate) fn lock(&self) -> MutexGuard<'_, Totals> {
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
    /// Some probe is in a program.
    pub(crate) files: bool,
    /// Some probe is at data of a task.
    pub(crate) tasks: bool,
    /// Some probe needs an exit at each return.
    pub(crate) exits_at_returns: bool,
}

/// The interests of a registered probe.
pub(crate) fn interests(probe: &Probe) -> Interests {
    let can_be_planted = !matches!(probe.status.state(), ProbeState::Gone | ProbeState::Refused);
    if probe.is_watch() {
        // The pages of the data become another's when the module or the task goes.
        return Interests {
            modules: probe.in_module.is_some(),
            tasks: probe.in_task.is_some(),
            ..Interests::default()
        };
    }
    let follows = match &probe.purpose {
        Purpose::KernelEvent(_) => return Interests::default(),
        Purpose::Return(purpose) => Some(purpose),
        _ => None,
    };
    if probe.in_program.is_some() {
        return Interests {
            calls: follows.is_some(),
            files: can_be_planted && probe.is_enabled(),
            ..Interests::default()
        };
    }
    Interests {
        calls: follows.is_some(),
        exits_at_returns: can_be_planted
            && follows.is_some_and(|purpose| probe.has_stack || purpose.action.needs_exit()),
        modules: probe.in_module.is_some(),
        plants: can_be_planted && probe.is_enabled(),
        files: false,
        tasks: false,
    }
}
