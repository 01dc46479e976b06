//! Where the tables come from.

use std::ops::Range;

use super::KallsymsError;
use crate::{Gpa, KernelImage, PhysMemory, SymbolTable};

/// The symbols of the decompressed kernel ELF in `bytes`.
///
/// # Errors
///
/// See [`KallsymsError`].
pub fn from_elf(bytes: &[u8]) -> Result<SymbolTable, KallsymsError> {
    from_image(&KernelImage::parse(bytes)?)
}

/// The symbols of `image`.
///
/// # Errors
///
/// See [`KallsymsError`].
pub fn from_image(_image: &KernelImage) -> Result<SymbolTable, KallsymsError> {
    Err(KallsymsError::NotFound)
}

/// The symbols of the kernel somewhere in the physical addresses `range`, at the addresses they have at
/// run time if the kernel has relocated itself.
///
/// # Errors
///
/// See [`KallsymsError`].
pub fn from_guest<M: PhysMemory + ?Sized>(
    _memory: &M,
    range: Range<Gpa>,
) -> Result<SymbolTable, KallsymsError> {
    Err(KallsymsError::Range {
        start: range.start,
        bytes: 0,
    })
}
