//! The types of requests and answers. Server, client and `openapi.json` share the types.
//!
//! Names follow the manifest and the summary of a run: keys with the same meaning have the same name.

mod dump;
mod events;
mod knobs;
mod log;
mod machine;
mod memory;
mod modules;
mod per_cpu;
mod probe;
mod problem;
mod stacks;
mod symbols;
mod tasks;
mod types;

pub use dump::{DUMP_PAUSE, DUMP_PAUSE_SECONDS};
pub(crate) use events::ServerSentEvent;
pub use events::{EventLine, Lost};
pub use knobs::{Knobs, SetKnobs};
pub use log::{Log, LogRecord};
pub use machine::{Machine, MachineState, Pause, PauseStats};
pub use memory::{Encoding, Memory};
pub use modules::{ListedModule, LoadState, Modules};
pub use per_cpu::{PerCpuCopy, PerCpuVariable, PerCpuVariables};
pub use probe::{AddProbe, AddProbes, Added, ChangeProbe, Changed, Probes, Removed, Stats};
pub use problem::{Problem, ProblemKind};
pub use stacks::{ListedStack, Stacks};
pub use symbols::{Symbol, Symbols};
pub use tasks::{ListedTask, Tasks};
pub use types::{DeclaredType, Printed, TypeMember};
