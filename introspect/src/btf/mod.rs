//! BTF: the kernel's description of the kernel's types.
//!
//! Stock kernels carry BTF in their image for eBPF: every struct with the members' offsets, every
//! enum, every function's parameters. From BTF hyprobe takes the offset of a module's name in
//! `struct module` without a table of kernel versions.
//!
//! A blob is a header, a row of type records numbered from 1 (`format`), and their names. [`Btf`]
//! notes the offset of each record and sorts the names once (`lookup`, `index`). Each query then
//! reads the blob: members by path (`members`), sizes (`sizes`), parameters and enumerators
//! (`functions`, `enums`). Any number in a blob may be wrong. Queries follow chains of types,
//! nested structs and names only for a limited number of steps, and return nothing for malformed
//! records.

mod enums;
mod error;
mod format;
mod functions;
mod index;
mod lookup;
mod members;
mod sizes;
mod source;
mod types;

pub use error::BtfError;
pub use lookup::Btf;
pub use types::{BitField, FuncProto, Int, Member, Param, StructId, Type, TypeId};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod tests;
