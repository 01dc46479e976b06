//! The programs of the guest, as the kernel knows them: address spaces, mapped files, and the pages of files in memory.
//!
//! Everything is read from the kernel's own structures. A page of a program that is not in its page tables is looked for in the file's page
//! cache; nothing is brought into memory.

mod address_space;
mod direct_map;
mod elf;
mod file_functions;
mod files;
mod folio;
mod frame;
mod frame_pointer;
mod loaded_file;
mod maple;
mod mapped_file;
mod mapping;
mod mark_counter;
mod marks;
mod memory;
mod no_code;
mod open_file;
mod page_cache;
mod path;
#[cfg(test)]
mod reader_tests;
mod registers;
mod stack;
mod symbols;
#[cfg(test)]
mod tests;
mod tree;
mod unwind;

pub(crate) use address_space::SpaceLayout;
pub use direct_map::DirectMap;
pub use file_functions::FileFunction;
pub(crate) use files::ProgramFiles;
pub(crate) use frame::ProgramStack;
pub use frame::{FoundBy, ProgramFrame};
pub use mapped_file::{FileLayout, FileReader, MappedFiles};
pub use mark_counter::CounterReaders;
pub use marks::{FileMark, FileMarks, MAX_OPERANDS, MarkCounter};
pub use no_code::NoCode;
pub use open_file::{FileId, FileVersion, OpenFile, Storage};
pub(crate) use registers::ProgramRegisters;
pub(crate) use stack::{ProgramStackReader, ProgramStacks};
