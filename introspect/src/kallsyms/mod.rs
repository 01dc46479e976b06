//! The kernel's own symbol tables, found in the kernel image or in guest memory.
//!
//! Stock kernels come without an ELF symbol table, but carry their symbols for `/proc/kallsyms` and
//! stack traces, compressed: each name is a run of tokens. No pointer leads to the tables, so the
//! parser recognises them by their shape, from the inside out:
//!
//! ```text
//! up to 6.3   offsets  relative_base  num_syms  names  markers  token_table  token_index
//! 6.4 on                              num_syms  names  markers  token_table  token_index  offsets  relative_base
//! 7.x                                 num_syms  names  markers  token_table  token_index  offsets (to themselves)
//! ```
//!
//! The token table holds the ten digits as ten tokens. The parser searches for the digits, and the
//! index behind the table proves the find (`tokens`). The markers before the table give the number
//! of names and so the start of the names (`names`). The parser then tries the addresses at each
//! position and in each encoding used by kernels (`addresses`), and takes the largest plausible
//! table with a label of the kernel's text (`tables`).

mod addresses;
mod budget;
mod error;
mod names;
mod sources;
mod symtab;
mod tables;
mod tokens;
mod view;

pub use error::KallsymsError;
pub use sources::{from_elf, from_guest, from_image};

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod synthetic;
#[cfg(test)]
mod tests;
