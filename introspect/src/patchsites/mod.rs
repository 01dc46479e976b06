//! Where the kernel patches its own code.
//!
//! The kernel rewrites its text at boot (alternatives, return thunks, paravirt calls, lock
//! prefixes) and for as long as it runs (ftrace, jump labels, static calls). The tables that tell
//! it where lie in the image, between linker labels; [`PatchSites`] reads them, so that a probe
//! longer than one byte can keep out of the way. Every table is optional, its size bounded, and
//! what does not point into code is left out.

mod alternatives;
mod formats;
mod kind;
mod sites;
mod tables;
mod targets;

pub(crate) use formats::{BRANCH_BYTES, instruction_len};
pub use kind::{PatchKind, PatchTime};
pub use sites::{PatchSite, PatchSites};
pub(crate) use targets::patched_targets;

#[cfg(test)]
mod tests;
