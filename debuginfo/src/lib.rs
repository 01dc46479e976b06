//! Source lines and inlined functions from a file with DWARF.
//!
//! [`DebugInfo`] is such a file: a `vmlinux` or a module with debug information, or the file that a distribution splits off. A program asks
//! for the lines of an address, for the addresses of a line, and for the inlined copies of a function. All addresses are link-time
//! addresses: the file knows nothing of a running kernel. A module is linked at its load: its addresses are made up (`relocation`), and a
//! program gets them from the file's symbols.
//!
//! ```text
//! file ── elf: the needed sections, decompressed and relocated ──▶ unit index: the addresses of each compilation unit
//!                                                        │
//!                              address ──▶ unit ── decode: scopes and line rows, kept ──▶ lines of the address
//!                    file name and line ──▶ all units with the file ──▶ rows and calls ── one for each scope ──▶ addresses
//!                              function ──▶ all inlined scopes ──▶ addresses
//! ```
//!
//! A look-up decodes the units that it needs. The file may be damaged or hostile: sizes have limits, and the work of a look-up is bounded by
//! the size of the file ([`LookupError::TooComplex`]).

#![forbid(unsafe_code)]

mod budget;
mod contents;
mod elf;
mod error;
mod info;
mod inlined;
mod line_addresses;
mod module_id;
mod names;
mod other_units;
mod paths;
mod ranges;
mod reader;
mod relocation;
mod scopes;
mod section;
mod stored;
#[cfg(any(test, feature = "fuzzing"))]
pub mod synthetic;
#[cfg(test)]
mod tests;
mod unit_cache;
mod unit_frames;
mod unit_lines;
mod unit_reader;
mod units;
mod variables;
mod zstd;

pub use error::{InlinedError, LineError, LookupError, OpenError};
pub use info::{DebugInfo, SourceFrame};
pub use module_id::module_build_id;
pub use scopes::SourcePlace;
