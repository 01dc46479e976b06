//! The modules of a running guest, read from guest memory.
//!
//! The kernel links the modules into a list; each module holds the ranges of code and data, the
//! symbols' names and the instructions patched by the kernel. The offsets in `struct module`, and
//! the form in use (`core_layout` up to 6.3, an array of `mem` since), come from the guest's own
//! type information ([`Btf`](crate::Btf)), so that no table of versions is needed (`layout`).
//! [`Modules`] is built from BTF once, and then reads all modules, or one module at an address
//! caught by a probe ([`ModuleEvent`] names the functions to probe).
//!
//! A module's own types are in a list of the kernel ([`Module::types`]).
//! A reader with memory of another kind walks the list itself, and takes each module from the bytes of
//! the `struct module` ([`Modules::describe`], [`Modules::usage`]).
//!
//! The guest must be paused during a read. A guest with false lists causes false results, but all
//! reads are bounded: modules, symbols of each, and bytes per call (`view`).

mod error;
mod event;
mod layout;
mod list;
mod module;
mod notes;
mod sites;
mod symbols;
mod types;
mod usage;
mod view;

pub use error::ModulesError;
pub use event::ModuleEvent;
pub use list::Modules;
pub use module::{Module, ModuleRegion, ModuleState, RegionKind};
pub use types::{ModuleTypes, ModuleTypesError};
pub use usage::ModuleUsage;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod tests;
