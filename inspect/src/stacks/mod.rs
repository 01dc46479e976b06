//! Kernel stacks of vCPUs and tasks, by the kernel's own ORC rules.
//!
//! ```text
//!  StackList ── which stacks ──▶ StackReader ── of a vCPU, of a task ──▶ StackView ── rules, words, modules ──▶ StackKernel
//!                                                                                                          a guest │ a dump
//! ```
//!
//! [`StackKernel`] is a kernel in a running guest or in a dump. [`StackView`] unwinds a stack and names the functions, [`StackReader`] does so
//! for all stacks of one moment, and [`StackList`] chooses the vCPUs and tasks. Unwinding and naming are two steps: a guest is paused for the
//! first only. Details: `docs/stacks.md`.

mod kernel;
mod list;
mod module_code;
mod named;
mod named_modules;
mod reader;
mod running_task;
mod vcpu;
mod view;

pub use kernel::StackKernel;
pub use list::{ListedStack, StackList, StackListError, StacksOf, UnnamedStack};
pub use named::{NamedFrame, NamedStack};
pub use named_modules::NamedModules;
pub use reader::StackReader;
pub use running_task::{RunningTask, per_cpu_area};
pub use vcpu::{NotStarted, StoppedVcpu, VcpuMode};
pub use view::{StackLimits, StackView};
