//! Bytes of the kernel by link-time address.

use thiserror::Error;

use crate::Gva;

/// A stretch of link-time addresses that the image does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the image holds no {len} bytes at link-time address {address}")]
pub struct NotInImage {
    /// Where the read began.
    pub address: Gva,
    /// How many bytes were asked for.
    pub len: usize,
}

/// A kernel, on disk or in memory, whose bytes are found by the address they were linked at.
pub trait ImageSource {
    /// Fills `buf` from link-time address `address` on.
    ///
    /// # Errors
    ///
    /// When any byte of the range is not in the image; what `buf` then holds is unspecified.
    fn read_linked(&self, address: Gva, buf: &mut [u8]) -> Result<(), NotInImage>;

    /// How far the absolute addresses stored in the image have been moved from their link-time
    /// values: 0 for a file, the KASLR slide for a kernel that has relocated itself.
    fn slide(&self) -> i64 {
        0
    }
}
