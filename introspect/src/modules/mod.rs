//! The modules of a running guest, read from its memory.
//!
//! The kernel links its modules into a list; each says where its code and data lie, what its
//! symbols are called and which of its instructions the kernel patches. Where in `struct module`
//! that stands, and in which of its two forms (`core_layout` up to 6.3, an array of `mem` since),
//! comes from the guest's own type information ([`Btf`](crate::Btf)), so that no table of versions
//! is needed (`layout`). [`Modules`] is made from that once and then reads all modules, or one
//! whose address a probe has caught ([`ModuleEvent`] tells where to catch it).
//!
//! To be read while the guest stands still. A guest that lies about its lists gets lies back, but
//! all of it is bounded: modules, symbols of each, and bytes read in one go (`view`).

mod error;
mod event;
mod layout;
mod list;
mod module;
mod sites;
mod slot;
mod symbols;
mod view;

pub use error::ModulesError;
pub use event::ModuleEvent;
pub use list::Modules;
pub use module::{Module, ModuleRegion, ModuleState, RegionKind};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod tests;
