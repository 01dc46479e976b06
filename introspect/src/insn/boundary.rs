//! The boundaries of a function's instructions.

use address::Gva;
use thiserror::Error;

use super::decode::{DecodeError, Decoded, decode};

/// Why an offset is not the start of an instruction.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotABoundary {
    /// The offset is inside an instruction.
    #[error(
        "offset {offset:#x} is inside the instruction `{containing}`, which begins at offset \
         {before:#x}; the next one begins at offset {after:#x}"
    )]
    Inside {
        /// The requested offset.
        offset: u64,
        /// The offset of the covering instruction.
        before: u64,
        /// The offset of the next instruction.
        after: u64,
        /// The covering instruction as text.
        containing: String,
    },
    /// The offset is at or past the end of the function.
    #[error("offset {offset:#x} is not inside the function, which is {size:#x} bytes long")]
    PastTheEnd {
        /// The requested offset.
        offset: u64,
        /// The function's size in bytes.
        size: u64,
    },
    /// The bytes up to the offset, or at the offset, are not all instructions.
    #[error("cannot tell where the instructions before offset {offset:#x} begin")]
    Undecodable {
        /// The requested offset.
        offset: u64,
        /// The decode error at the end of the sweep.
        source: DecodeError,
    },
}

/// An iterator over the instructions of a function from the start.
///
/// Ends after the first bytes that are no instruction: all further boundaries would be a guess.
#[derive(Clone, Debug)]
pub struct Boundaries<'a> {
    rest: &'a [u8],
    at: Gva,
}

impl Iterator for Boundaries<'_> {
    type Item = Result<Decoded, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let found = decode(self.rest, self.at);
        match &found {
            Ok(decoded) => {
                self.rest = &self.rest[decoded.len()..];
                self.at = decoded.next();
            }
            Err(_) => self.rest = &[],
        }
        Some(found)
    }
}

impl std::iter::FusedIterator for Boundaries<'_> {}

/// Sweeps the instructions in `bytes`, the first of which is at `start`.
#[must_use]
pub fn boundaries(bytes: &[u8], start: Gva) -> Boundaries<'_> {
    Boundaries {
        rest: bytes,
        at: start,
    }
}

/// The instruction beginning at `offset` of the function at `start`.
///
/// # Errors
///
/// If no instruction begins at the offset; the error names the boundaries around the offset.
pub fn check_boundary(
    function_bytes: &[u8],
    start: Gva,
    offset: u64,
) -> Result<Decoded, NotABoundary> {
    let mut before = 0;
    for found in boundaries(function_bytes, start) {
        let decoded = found.map_err(|source| NotABoundary::Undecodable { offset, source })?;
        if before == offset {
            return Ok(decoded);
        }
        let after = before + decoded.len() as u64;
        if offset < after {
            let containing = decoded.text();
            return Err(NotABoundary::Inside {
                offset,
                before,
                after,
                containing,
            });
        }
        before = after;
    }
    Err(NotABoundary::PastTheEnd {
        offset,
        size: function_bytes.len() as u64,
    })
}
