//! The errors of reading kallsyms.

use address::Gpa;
use thiserror::Error;

use crate::ImageError;

/// Why no symbols were found.
#[derive(Debug, Error)]
pub enum KallsymsError {
    /// The bytes are not a kernel image.
    #[error("cannot look for symbols in this file")]
    Image(#[from] ImageError),
    /// The image has neither a symbol table nor plausible kallsyms tables.
    #[error("no kallsyms tables found: not a Linux kernel, or one built without CONFIG_KALLSYMS")]
    NotFound,
    /// The range of guest memory is empty or larger than any kernel.
    #[error("a range of {bytes} bytes at {start} cannot be a kernel image")]
    Range {
        /// The first address of the range.
        start: Gpa,
        /// The length of the range in bytes.
        bytes: u64,
    },
}
