//! The state shared by all routes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use events::ProbeId;
use tokio::sync::Semaphore;

use super::names::{Names, shortened};
use crate::api::{MachineState, Problem, ProblemKind};
use crate::hub::EventHub;
use crate::limits::{CONNECTIONS, EVENT_STREAMS};
use crate::operator::{Operator, Pauses};
use crate::target::Target;

/// State shared by all connections.
pub(super) struct App {
    pub(super) target: Arc<dyn Target>,
    pub(super) operator: Operator,
    pub(super) pauses: Arc<Pauses>,
    pub(super) hub: Arc<EventHub>,
    /// Permits for connections; `streams` has the permits for the event streams among them.
    pub(super) served: Arc<Semaphore>,
    pub(super) streams: Arc<Semaphore>,
    names: Arc<Mutex<Names>>,
}

impl App {
    pub(super) fn new(
        target: Arc<dyn Target>,
        operator: Operator,
        pauses: Arc<Pauses>,
        hub: Arc<EventHub>,
    ) -> Self {
        Self {
            target,
            operator,
            pauses,
            hub,
            served: Arc::new(Semaphore::new(CONNECTIONS)),
            streams: Arc::new(Semaphore::new(EVENT_STREAMS)),
            names: Arc::default(),
        }
    }

    /// Number of connected clients.
    pub(super) fn connections(&self) -> usize {
        CONNECTIONS - self.served.available_permits()
    }

    pub(super) fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    /// The names, for the operator's thread.
    pub(super) fn shared_names(&self) -> Arc<Mutex<Names>> {
        Arc::clone(&self.names)
    }

    pub(super) fn state(&self) -> MachineState {
        if self.target.is_ending() {
            MachineState::Ending
        } else if self.pauses.is_held() {
            MachineState::Paused
        } else {
            MachineState::Running
        }
    }

    /// The number of the probe in a path, given by number or own name. Does not check that a probe given by number exists.
    pub(super) fn probe(&self, named: &str) -> Result<ProbeId, Problem> {
        let number = named.parse().ok().map(|number: u64| ProbeId::from(number));
        number
            .or_else(|| self.names().probe(named))
            .ok_or_else(|| no_probe(named))
    }
}

pub(super) fn lock(names: &Mutex<Names>) -> MutexGuard<'_, Names> {
    // The map is valid after every statement.
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn no_probe(named: &str) -> Problem {
    ProblemKind::NoSuchProbe
        .with(format!("there is no probe `{}`", shortened(named)))
        .help(Some("`hyprobe probe list` shows all".to_owned()))
}
