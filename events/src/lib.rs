//! Reports of a run: its events, its summary, and the verdicts on its expectations.

#![forbid(unsafe_code)]

mod event;
pub mod judge;

pub use event::{
    Crash, Event, EventSink, Frame, GuestSummary, Hex, Hit, NotLoaded, Note, ProbeState,
    ProbeSummary, Registers, Return, Summary, Tier,
};
