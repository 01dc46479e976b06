//! Reports of a run: its events, the status of its probes, its summary, and the verdicts on its expectations.

#![forbid(unsafe_code)]

mod event;
pub mod judge;
mod probe_id;
mod probe_status;

pub use event::{
    Crash, Event, EventSink, Frame, GuestSummary, Hex, Hit, NotLoaded, Note, ProbeState,
    ProbeSummary, Registers, Return, Summary, Tier,
};
pub use probe_id::ProbeId;
pub use probe_status::ProbeStatus;
