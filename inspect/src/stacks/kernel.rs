//! The kernel whose stacks are unwound.

use address::Gva;
use introspect::orc::{Displaced, TrampolineLayout};
use introspect::{Modules, PagingState, PhysMemory, SymbolTable, TaskLayout};

/// A kernel in a guest's memory or in a dump, as far as stacks need it.
pub trait StackKernel {
    /// Guest-physical memory without plants.
    fn memory(&self) -> &dyn PhysMemory;

    /// The symbols at link-time addresses.
    fn symbols(&self) -> &SymbolTable;

    /// The distance from the link-time to the running addresses; `None` until known.
    fn slide(&self) -> Option<i64>;

    /// Whether the kernel's image has code at the link-time address `linked`.
    fn holds_code(&self, linked: Gva) -> bool;

    /// The layout of modules; `None` for a kernel without modules or without types.
    fn modules(&self) -> Option<&Modules>;

    /// The layout of ftrace's trampolines; `None` for a kernel without trampolines or without types.
    fn trampolines(&self) -> Option<TrampolineLayout>;

    /// The place of a processor's current task; `None` if types and symbols do not reveal it.
    fn tasks(&self) -> Option<TaskLayout>;

    /// If `at` is in code that hyprobe has injected, the place that the code stands for.
    fn displaced(&self, paging: &PagingState, at: Gva) -> Option<Displaced>;
}
