//! The kernel whose stacks are unwound.

use address::Gva;
use introspect::orc::{Displaced, TrampolineLayout};
use introspect::{Btf, Modules, PagingState, PhysMemory, SymbolTable, TaskLayout};

use crate::tasks::RunningTask;

/// A kernel in a guest's memory or in a dump, as far as stacks need it.
pub trait StackKernel {
    /// Guest-physical memory without plants.
    fn memory(&self) -> &dyn PhysMemory;

    /// Guest-physical memory for reads where no plant can be: tasks, programs and page tables. The reads may be faster than those of
    /// [`memory`](Self::memory).
    fn data(&self) -> &dyn PhysMemory {
        self.memory()
    }

    /// The symbols at link-time addresses.
    fn symbols(&self) -> &SymbolTable;

    /// The kernel's types; the reason if there are none.
    ///
    /// # Errors
    ///
    /// If the kernel has no type information, or the information is damaged.
    fn types(&self) -> Result<&Btf, String>;

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

    /// All that is known of the task with the `task_struct` at `at`; `None` if the memory cannot be read.
    fn task(&self, paging: &PagingState, at: Gva) -> Option<RunningTask>;

    /// If `at` is in code that hyprobe has injected, the place that the code stands for.
    fn displaced(&self, at: Gva) -> Option<Displaced>;
}
