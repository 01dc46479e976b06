//! Names for addresses and addresses for names.
//!
//! A [`SymbolTable`] is built once, from kallsyms or an ELF symbol table, and then only read: by
//! address for display, by name or pattern for probes, and by likeness when a name was mistyped.
//! [`SymbolTable::rebased`] moves a table made from an image to the addresses chosen by the guest's
//! KASLR.

mod builder;
mod glob;
mod rank;
mod suggest;
mod symbol;
mod table;

pub use builder::SymbolTableBuilder;
pub use glob::glob_matches;
pub use suggest::nearest_names;
pub use symbol::{Symbol, SymbolOffset};
pub use table::SymbolTable;

#[cfg(test)]
mod tests;
