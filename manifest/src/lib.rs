//! Requests for a run: probes, programs, expectations, faults and choices, and the manifest that lists them.
//!
//! A request names functions as users write them. Whether a kernel has the functions is known to the engine alone, so this crate needs
//! neither KVM nor symbols.

#![forbid(unsafe_code)]

mod allowed;
mod choices;
mod expect;
mod file;
mod inject;
mod probe_config;
mod probe_variable;
pub mod program;
mod program_conflict;
mod spec;
mod suggest;
pub mod units;

pub use allowed::Allowed;
pub use choices::{
    Accel, Boot, Console, Format, GuestEnd, ProbeAction, Stealth, TrapChoice, WhenFull, Word,
    Workload,
};
pub use expect::{Count, Expectation, Expected, Pattern, ValuePlace, Width};
pub use file::{
    GuestSection, InitrdSource, InvalidManifest, KernelSource, Manifest, ManifestError, Problem,
    RunSection,
};
pub use inject::{Due, Injection};
pub use probe_config::{Action, ProbeConfig};
pub use probe_variable::ProbeVariable;
pub use program_conflict::{ProgramConflict, RequestedProbes};
pub use spec::{
    DataBase, FilePlace, Location, MAX_WATCHED_BYTES, MarkNames, ModuleSpec, ProbeKind, ProbeSpec,
    ProgramCode, SpecError, SpecProblem, WatchedAccess, WatchedData,
};
