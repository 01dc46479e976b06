//! The probe engine: resolves probes, plants them, and handles hits.

#![forbid(unsafe_code)]

mod addresses;
mod applied;
#[cfg(feature = "bench-internals")]
#[doc(hidden)]
pub mod bench;
mod choices;
mod detour;
mod engine;
mod event;
mod expect;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guest;
mod handler;
mod hit;
mod inject;
pub mod judge;
mod kernel;
pub mod manifest;
mod module;
mod plant;
pub mod program;
mod registry;
mod request;
mod resolve;
mod returns;
mod session;
mod spec;
mod suggest;
pub mod units;

pub use choices::{
    Accel, Boot, Console, Format, ProbeAction, TrapChoice, WhenFull, Word, Workload,
};
pub use engine::{
    Abilities, Action, ArmError, At, Engine, Inventory, NewProbe, Prepared, ProbeRecord, ReadError,
    RegisterError,
};
pub use event::{
    Crash, Event, EventSink, Frame, GuestEnd, GuestSummary, Hex, Hit, Note, ProbeState,
    ProbeSummary, Registers, Return, Summary, Tier,
};
pub use expect::{Count, Expectation, Expected, Pattern, ValuePlace, Width};
pub use guest::{GuestError, GuestMemory, Paused, Unwritable};
pub use handler::{
    AccessError, EntryOutcome, FaultOutcome, Handler, HitContext, InstructionFault, PreOutcome,
    ReturnHandler,
};
pub use inject::{Due, Injection};
pub use kernel::{Kernel, KernelError, ModulesUnknown};
pub use plant::PlantByte;
pub use registry::ProbeId;
pub use request::ProbeRequest;
pub use resolve::{
    FunctionVerdict, PATTERN_HELP, Place, ProbeNumber, Refusal, ResolveError, ResolveProblem,
    Resolved, Via, When, functions, resolve,
};
pub use session::{Session, SessionConfig, SessionError, check_addresses};
pub use spec::{Location, ProbeKind, ProbeSpec, SpecError, SpecProblem};
