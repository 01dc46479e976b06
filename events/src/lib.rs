//! Reports of a run: its events, the status of its probes, its summary, and the verdicts on its expectations.

#![forbid(unsafe_code)]

mod errno;
mod event;
mod fields;
mod hex;
pub mod judge;
mod probe_id;
mod probe_status;
#[cfg(feature = "openapi")]
mod schema;
mod stack;
mod task;
mod typed;

pub use errno::error_name;
pub use event::{
    AwaitsModule, Crash, DataRead, DataWrite, Event, EventSink, GuestSummary, Hit, LogEnd,
    NotLoaded, NotStarted, Note, ProbeState, ProbeSummary, Registers, Return, Summary, Tier,
};
pub use fields::{Field, FieldValue, Fields};
pub use hex::Hex;
pub use probe_id::ProbeId;
pub use probe_status::ProbeStatus;
#[cfg(feature = "openapi")]
pub use schema::{SCHEMA_VERSION, event_schema};
pub use stack::{Frame, FrameSource, InlinedCall, ProgramFrame, StackFrame, VcpuStack};
pub use task::{ParentTask, Task};
pub use typed::{GuestMembers, GuestString, Number, Param, Typed};
