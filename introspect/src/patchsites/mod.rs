//! The sites at which the kernel patches its own code.
//!
//! The kernel rewrites its text at boot (alternatives, return thunks, paravirt calls, lock prefixes) and for as long as the
//! kernel runs (ftrace, jump labels, static calls). The tables of the sites lie in the image, between linker labels.
//! [`PatchSites`] reads the tables, to keep probes longer than one byte away from the sites. Every table is optional, the size
//! is bounded, and entries that do not point into code are left out.

mod alternatives;
mod formats;
mod kind;
mod site;
mod sites;
mod tables;
mod targets;

pub(crate) use formats::{BRANCH_BYTES, instruction_len, static_call_trampoline};
pub use kind::{PatchKind, PatchTime};
pub use site::PatchSite;
pub use sites::PatchSites;
pub(crate) use targets::patched_targets;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod tests;
