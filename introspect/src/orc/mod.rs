//! Stacks of the kernel, unwound by ORC: the tables that the kernel's own unwinder uses.
//!
//! For each range of the kernel's code, a [`Rule`] tells where the caller's frame is: a register and an offset for the stack
//! pointer of the caller, and whether a return address or the registers of an interrupt lie below. [`OrcTable`] holds the rules of
//! the kernel, [`ModuleRules`] reads those of modules from guest memory, [`TrampolineLayout`] finds
//! ftrace's trampolines, and [`unwind()`] follows the rules from a vCPU's or a sleeping task's registers.
//!
//! The numbers of the rules' registers and types have changed between kernels. [`Format`] takes the numbers from the table itself:
//! most of the rules of every kernel start from the stack pointer, and are for calls.

mod format;
mod module;
mod table;
#[cfg(test)]
mod tests;
mod trampolines;
mod unwind;

pub use format::{Base, Format, FrameKind, FrameRule, PreviousBp, Rule};
pub use module::ModuleRules;
pub use table::{NoOrc, OrcTable};
pub use trampolines::TrampolineLayout;
pub use unwind::{
    CodeFrame, Displaced, Incomplete, KernelStack, SavedRegisters, StackSource, Start,
    StartRegisters, SwitchFrame, unwind,
};
