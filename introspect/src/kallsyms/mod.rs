//! The kernel's own symbol tables, found in its image or in guest memory.
//!
//! Stock kernels come without an ELF symbol table, but carry their symbols for `/proc/kallsyms` and
//! stack traces, compressed: each name is a run of tokens. Nothing points to the tables, so they
//! are recognised by their shape, from the inside out:
//!
//! ```text
//! up to 6.3   offsets  relative_base  num_syms  names  markers  token_table  token_index
//! 6.4 on                              num_syms  names  markers  token_table  token_index  offsets  relative_base
//! 7.x                                 num_syms  names  markers  token_table  token_index  offsets (to themselves)
//! ```
//!
//! The token table holds the ten digits as ten tokens, which is searched for, and the index behind
//! it proves the find (`tokens`); the markers before it say how many names there are and so where
//! they begin (`names`); the addresses are then tried in each place and encoding that kernels have
//! used (`addresses`). What makes sense and has the labels that every kernel has is taken
//! (`tables`).

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
