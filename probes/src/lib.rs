//! The probe engine: resolves probes, plants them, and handles hits.

#![forbid(unsafe_code)]

mod applied;
mod arguments;
#[cfg(feature = "bench-internals")]
#[doc(hidden)]
pub mod bench;
mod code;
mod debug_registers;
mod engine;
mod handler;
mod hit_state;
mod inject;
mod kernel;
mod module;
mod plant;
mod plant_table;
mod registry;
mod resolve;
mod returns;
mod session;
mod tracepoint_record;

pub use arguments::ArgumentSource;
pub use engine::{
    Abilities, ArmError, At, Engine, EngineAction, Inventory, NoStacks, Prepared, ProgramPart,
    ReadError, RegisterError, Stack, UnprobedExits, event_task, stopped_vcpu,
};
pub use handler::{
    AccessError, EntryOutcome, FaultOutcome, Handler, HitContext, PreOutcome, ReturnHandler,
};
pub use kernel::{Kernel, KernelError, ModulesUnknown};
pub use resolve::{
    FunctionVerdict, MemoryOwner, PATTERN_HELP, Place, PlantTime, ProbeNumber, ProgramProblem,
    Refusal, ResolveError, ResolveProblem, Resolved, TaskMember, Via, WatchProblem, functions,
    resolve,
};
pub use session::{Session, SessionConfig, SessionError, check_addresses};
