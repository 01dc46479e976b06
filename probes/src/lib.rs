//! The probe engine: what to probe, where it is planted, what happens on a hit.

#![forbid(unsafe_code)]

mod event;

pub use event::{
    Event, EventSink, GuestEnd, GuestSummary, Hex, Hit, Note, ProbeState, ProbeSummary, Summary, Tier,
};
