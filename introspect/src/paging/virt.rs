//! Reads at virtual addresses.

use address::Gva;
use thiserror::Error;

use super::{PagingState, WalkFault, walk};
use crate::{PhysMemory, Unreadable};

/// Why a read at a virtual address failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VirtReadError {
    /// A page of the range has no translation.
    #[error(transparent)]
    Walk(#[from] WalkFault),
    /// A page of the range is mapped to an address without memory.
    #[error("{gva} is mapped to where there is no memory")]
    Unreadable {
        /// The first address of the page's part of the range.
        gva: Gva,
        /// The failed read.
        source: Unreadable,
    },
    /// The range runs past the end of the address space.
    #[error("the range of {len} bytes at {gva} wraps around")]
    Wraps {
        /// The first address of the range.
        gva: Gva,
        /// The length of the range in bytes.
        len: usize,
    },
}

/// Fills `buf` from the virtual address `gva` on, page by page. Permissions are not checked.
///
/// # Errors
///
/// If any page of the range cannot be read; the contents of `buf` are then unspecified.
pub fn read_virt<M: PhysMemory + ?Sized>(
    memory: &M,
    state: &PagingState,
    gva: Gva,
    buf: &mut [u8],
) -> Result<(), VirtReadError> {
    let wraps = VirtReadError::Wraps {
        gva,
        len: buf.len(),
    };
    let mut at = gva;
    let mut rest = buf;
    while !rest.is_empty() {
        let translation = walk(memory, state, at)?;
        let left = usize::try_from(translation.bytes_left_in_page()).unwrap_or(usize::MAX);
        let (part, tail) = rest.split_at_mut(left.min(rest.len()));
        memory
            .read(translation.gpa, part)
            .map_err(|source| VirtReadError::Unreadable { gva: at, source })?;
        if !tail.is_empty() {
            at = at.checked_add(part.len() as u64).ok_or(wraps)?;
        }
        rest = tail;
    }
    Ok(())
}
