//! The kernel functions to probe for the loading and unloading of modules.

use crate::insn::Gpr;

/// A moment in a module's life at which the kernel calls a function that can be probed.
///
/// From 5.10 to 7.2 at least, the functions have the same names and the same argument, and none is
/// inlined or split (`load_module` and `delete_module` call them).
///
/// ```text
/// load_module ─ copied, relocated, patched, ftrace sites disabled, pages made executable, on the list
///      │         parameters parsed (a module's own setter runs here, before any event)
///   Loaded ───── constructors, init function, state → live; the init parts leave `struct module`
///      ├──────── InitFreed (a worker, later)
///      │
///      │  rmmod: exit function, notifiers      Loaded's init function failed: notifiers
///  Unloading ─── state → unformed, off the list, memory freed
/// ```
///
/// A load failing before `Loaded` causes no event, and no earlier event has shown the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleEvent {
    /// The text is in place and nothing of the init function has run.
    Loaded,
    /// All live modules lose their init sections.
    InitFreed,
    /// Nothing of the module runs any more; the text is still in place.
    Unloading,
}

impl ModuleEvent {
    /// All events.
    pub const ALL: [Self; 3] = [Self::Loaded, Self::InitFreed, Self::Unloading];

    /// The function whose entry marks the event.
    #[must_use]
    pub const fn function(self) -> &'static str {
        match self {
            Self::Loaded => "do_init_module",
            Self::InitFreed => "do_free_init",
            Self::Unloading => "free_module",
        }
    }

    /// The register with the address of the `struct module` at the function's entry; `None` for an
    /// event about no module in particular.
    #[must_use]
    pub const fn module_register(self) -> Option<Gpr> {
        match self {
            Self::Loaded | Self::Unloading => Some(Gpr::Rdi),
            Self::InitFreed => None,
        }
    }
}
