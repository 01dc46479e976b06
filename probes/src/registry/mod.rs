//! Registered probes: the requests and the results.

mod counters;
mod missed;
mod probe;
mod probe_id;
mod purpose;
mod status;

pub(crate) use counters::ProbeCounters;
pub(crate) use missed::Missed;
pub(crate) use probe::Probe;
pub use probe_id::ProbeId;
pub(crate) use purpose::{Interests, Milestone, Purpose, Reader, ReturnAction, ReturnPurpose};
pub(crate) use status::ProbeStatus;
