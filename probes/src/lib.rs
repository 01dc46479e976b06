//! The probe engine: what to probe, where it is planted, what happens on a hit.

#![forbid(unsafe_code)]

mod choices;
mod engine;
mod event;
mod guest;
mod hit;
mod kernel;
pub mod manifest;
mod plant;
mod registry;
mod resolve;
mod session;
mod spec;
mod suggest;
pub mod units;

pub use choices::{Accel, Boot, Console, Format, TrapChoice, Word, Workload};
pub use engine::{Abilities, ArmError, Engine};
pub use event::{
    Event, EventSink, GuestEnd, GuestSummary, Hex, Hit, Note, ProbeState, ProbeSummary, Registers,
    Summary, Tier,
};
pub use guest::{GuestError, GuestMemory, Paused, Unwritable};
pub use kernel::{Kernel, KernelError};
pub use plant::PlantByte;
pub use resolve::{Place, Refusal, ResolveError, ResolveProblem, Resolved, Via, When, resolve};
pub use session::{Session, SessionConfig, SessionError};
pub use spec::{Location, ProbeKind, ProbeSpec, SpecError, SpecProblem};
