//! The reasons why the place of a probe in a file is not known.

use thiserror::Error;

/// Why a place in a file is not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoCode {
    /// The file is not a program's, or its beginning is not in memory.
    #[error("its headers are not in memory, or are not those of a 64-bit program")]
    NoHeaders,
    /// No symbol table.
    #[error(
        "no table of its functions is in memory, or the table is larger than 4 MiB: name the place by its offset in the file"
    )]
    NoFunctions,
    /// The table lacks the name.
    #[error("it has no function `{0}`")]
    NoFunction(String),
    /// No notes of marks.
    #[error(
        "it has no marks, or their notes are not in memory, or are larger than 4 MiB: read the whole file in the guest, then start a program that maps it, or add the probe again"
    )]
    NoMarks,
    /// The notes lack the names.
    #[error("it has no mark `{0}`")]
    NoMark(String),
    /// The notes lack the names, as far as they are to be understood.
    #[error(
        "it has no mark `{name}`, and {notes} of its notes about marks are damaged, or name an address without code"
    )]
    UnusableMarks {
        /// The names.
        name: String,
        /// The number of notes.
        notes: usize,
    },
    /// The table has no name of the pattern.
    #[error("it has no function with a name like `{0}`")]
    NoMatch(String),
    /// Local functions of one name.
    #[error("it has several functions `{0}`: name one by its offset in the file")]
    Several(String),
    /// `STT_GNU_IFUNC`.
    #[error(
        "`{0}` stands for one of several functions, which the program chooses when it starts: name the place by its offset in the file"
    )]
    Indirect(String),
    /// The offset is outside of the function.
    #[error("`{name}` has {size:#x} bytes")]
    Outside {
        /// The function.
        name: String,
        /// Its size.
        size: u64,
    },
    /// The address is in no segment.
    #[error("`{0}` is in no part of the file that is loaded")]
    NotLoaded(String),
}
