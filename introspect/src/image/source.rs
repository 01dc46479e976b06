//! Bytes of the kernel by link-time address.

use address::Gva;
use thiserror::Error;

/// The error for a range of link-time addresses not in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the image holds no {len} bytes at link-time address {address}")]
pub struct NotInImage {
    /// The first address of the read.
    pub address: Gva,
    /// The number of requested bytes.
    pub len: usize,
}

/// A kernel, on disk or in memory, with bytes readable by link-time address.
pub trait ImageSource {
    /// Fills `buf` from link-time address `address` on.
    ///
    /// # Errors
    ///
    /// If any byte of the range is not in the image; the contents of `buf` are then unspecified.
    fn read_linked(&self, address: Gva, buf: &mut [u8]) -> Result<(), NotInImage>;

    /// The offset of the absolute addresses stored in the image from their link-time values: 0 for
    /// a file, the KASLR slide for a kernel that has relocated itself.
    fn slide(&self) -> i64 {
        0
    }
}
