//! Registered probes: the requests and the results.

mod counters;
mod file_event;
mod missed;
mod probe;
mod purpose;
mod status_cell;
mod tier_cell;

pub(crate) use counters::ProbeCounters;
pub(crate) use file_event::{FileArguments, FileEvent, Mover, argument};
pub(crate) use missed::Missed;
pub(crate) use probe::Probe;
pub(crate) use purpose::{Interests, KernelEvent, Purpose, Reader, ReturnAction, ReturnPurpose};
pub(crate) use status_cell::StatusCell;
pub(crate) use tier_cell::TierCell;
