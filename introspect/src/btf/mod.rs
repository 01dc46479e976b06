//! BTF: the kernel's description of the kernel's types.
//!
//! Stock kernels carry BTF in their image for eBPF: every struct with the members' offsets, every
//! enum, every function's parameters. From BTF hyprobe takes the offset of a module's name in
//! `struct module` without a table of kernel versions.
//!
//! A blob is a header, a row of type records numbered from 1 (`format`), and their names. Two layers
//! read a blob:
//!
//! - the records: `records` notes the offset of each record once, and `record` reads a record and
//!   its elements in place, without a copy. Only `records` knows where a type's record and a name
//!   are;
//! - the types above: [`Btf`] sorts the names once (`index`), and finds types by name and by number
//!   (`lookup`), members by path (`members`), sizes (`sizes`), variables of a section (`sections`),
//!   parameters and enumerators (`functions`, `enums`, `flags`), and types as C text (`declaration`).
//!
//! The blob of a module names types and strings of the kernel's by number ("split BTF"): [`Btf::parse_module`] puts one on top of the
//! other.
//!
//! Any number in a blob may be wrong. A record ends within the type section, and its elements
//! within the record. Queries follow chains of types, nested structs and names only for a limited
//! number of steps, and return nothing for malformed records.

mod declaration;
mod enums;
mod error;
mod flags;
mod format;
mod functions;
mod index;
mod lookup;
mod members;
mod record;
mod records;
mod sections;
mod sizes;
mod slot;
mod source;
mod types;

pub use declaration::{Declarator, declaration};
pub use enums::Enum;
pub use error::BtfError;
pub(crate) use flags::{are_flags, combined};
pub use functions::SharedProto;
pub use lookup::Btf;
pub use sections::SectionVariable;
pub use slot::Slot;
pub use types::{BitField, FuncProto, Int, Member, Param, StructId, Type, TypeId};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod tests;
