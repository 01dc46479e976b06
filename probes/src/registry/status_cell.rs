//! The state of a probe, with the reasons for the state.

use std::sync::{Mutex, MutexGuard, PoisonError};

use events::{Hex, ProbeState};

/// The state of a probe. The thread that has paused the vCPUs writes the state; any thread may read it.
#[derive(Debug)]
pub(crate) struct StatusCell(Mutex<Status>);

/// One reading of a probe's state.
#[derive(Clone, Debug)]
pub(super) struct Status {
    pub(super) state: ProbeState,
    pub(super) reason: Option<String>,
    pub(super) ip: Option<Hex>,
    pub(super) unoptimised: Option<String>,
}

impl Default for StatusCell {
    fn default() -> Self {
        Self(Mutex::new(Status {
            state: ProbeState::Pending,
            reason: None,
            ip: None,
            unoptimised: None,
        }))
    }
}

impl StatusCell {
    fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_state(&self, state: ProbeState, reason: Option<String>) {
        let mut status = self.lock();
        status.state = state;
        status.reason = reason;
    }

    pub(crate) fn set_armed(&self, ip: Hex) {
        let mut status = self.lock();
        status.state = ProbeState::Armed;
        status.reason = None;
        status.ip = Some(ip);
    }

    /// Sets the reason why hits exit although a detour could handle them.
    pub(crate) fn set_unoptimised(&self, why: Option<String>) {
        self.lock().unoptimised = why;
    }

    pub(crate) fn state(&self) -> ProbeState {
        self.lock().state
    }

    pub(super) fn get(&self) -> Status {
        self.lock().clone()
    }
}
