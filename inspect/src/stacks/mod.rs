//! The stacks of vCPUs and tasks: in the kernel by its own ORC rules, in programs by the rules of their files.
//!
//! ```text
//!  StackList ── which stacks ──▶ StackReader ── of a vCPU, of a task ──▶ StackView ── rules, words, modules ──▶ StackKernel
//!                                                                                                          a guest │ a dump
//! ```
//!
//! [`StackKernel`] is a kernel in a running guest or in a dump. [`StackView`] unwinds a stack and names the functions, [`StackReader`] does so
//! for all stacks of one moment, and [`StackList`] chooses the vCPUs and tasks. [`ProgramReader`] goes on into the program behind a stack.
//! Unwinding and naming are two steps: a guest is paused for the first only. Details: `docs/stacks.md`.

mod current_task;
mod kernel;
mod list;
mod module_code;
mod named;
mod named_modules;
mod program_reader;
mod reader;
mod vcpu;
mod view;

pub use current_task::per_cpu_area;
pub use kernel::StackKernel;
pub use list::{ListedStack, StackList, StackListError, StacksOf, UnnamedStack};
pub use named::{NamedFrame, NamedProgram, NamedStack};
pub use named_modules::NamedModules;
pub use program_reader::{KnownPrograms, ProgramReader};
pub use reader::StackReader;
pub use vcpu::{GeneralRegisters, NotStarted, StoppedVcpu, VcpuMode};
pub use view::{StackLimits, StackView};
