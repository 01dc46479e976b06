//! The kernel's own description of its types, BTF.
//!
//! Stock kernels carry it in their image for eBPF: every struct with its members' places, every
//! enum, every function's parameters. It tells where `struct module` keeps a module's name without
//! a table of kernel versions.
//!
//! A blob is a header, a row of type records numbered from 1 (`format`), and their names. [`Btf`]
//! notes where each record begins and sorts the names once (`blob`, `index`); what is asked is then
//! read from the blob itself: members by path (`members`), sizes (`sizes`), parameters and
//! enumerators (`functions`, `enums`). Any number in it may be wrong: chains of types, nested
//! structs and names are followed for so many steps only, and what makes no sense is not there.

mod blob;
mod enums;
mod error;
mod format;
mod functions;
mod index;
mod members;
mod sizes;
mod source;
mod types;

pub use blob::Btf;
pub use error::BtfError;
pub use types::{BitField, FuncProto, Int, Member, Param, StructId, Type, TypeId};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod tests;
