//! Registered probes: the requests and the results.

mod missed;
mod probe;
mod probe_id;
mod purpose;

pub(crate) use missed::Missed;
pub(crate) use probe::Probe;
pub use probe_id::ProbeId;
pub(crate) use purpose::{Interests, Milestone, Purpose, Reader, ReturnAction, ReturnPurpose};
