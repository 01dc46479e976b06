//! Registered probes: the requests and the results.

mod missed;
mod probe;
mod purpose;

pub(crate) use missed::Missed;
pub(crate) use probe::Probe;
pub(crate) use purpose::{Interests, Milestone, Purpose, Reader, ReturnAction, ReturnPurpose};

/// The number of a probe within its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub(crate) u64);

impl From<u64> for ProbeId {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<ProbeId> for u64 {
    fn from(id: ProbeId) -> Self {
        id.0
    }
}

impl std::fmt::Display for ProbeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
