//! The probe engine: what to probe, where it is planted, what happens on a hit.

#![forbid(unsafe_code)]

mod choices;
mod event;
pub mod manifest;
mod spec;
mod suggest;
pub mod units;

pub use choices::{Accel, Boot, Console, Format, TrapChoice, Word, Workload};
pub use event::{
    Event, EventSink, GuestEnd, GuestSummary, Hex, Hit, Note, ProbeState, ProbeSummary, Registers, Summary,
    Tier,
};
pub use spec::{Location, ProbeKind, ProbeSpec, SpecError, SpecProblem};
