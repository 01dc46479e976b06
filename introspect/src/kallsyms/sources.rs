//! The sources of symbols: an ELF file or guest memory.

use std::ops::Range;

use address::{Gpa, Gva, PAGE_LEN};

use super::{KallsymsError, symtab, tables, view::View};
use crate::{KernelImage, PhysMemory, SymbolTable};

/// The kernel's mapping is a gigabyte at most, and today's kernels take a tenth of a gigabyte.
const MAX_KERNEL_BYTES: u64 = 256 << 20;
/// Guest memory is copied in pieces of 1 MiB, and page by page if a piece cannot be read in full.
const PIECE_BYTES: usize = 1 << 20;

/// The symbols of the decompressed kernel ELF in `bytes`, at link-time addresses.
///
/// # Errors
///
/// If `bytes` are no ELF file for x86-64, or no symbols are found.
pub fn from_elf(bytes: &[u8]) -> Result<SymbolTable, KallsymsError> {
    from_image(&KernelImage::parse(bytes)?)
}

/// The symbols of `image`, at link-time addresses: from the ELF symbol table if present, else from
/// the kallsyms tables.
///
/// # Errors
///
/// If the image has neither.
pub fn from_image(image: &KernelImage) -> Result<SymbolTable, KallsymsError> {
    if let Some(table) = symtab::parse(image.bytes()) {
        return Ok(tables::without_stray_text(table));
    }
    let views = image.segments().iter().filter_map(|segment| {
        let bytes = image
            .bytes()
            .get(segment.file_offset..)?
            .get(..segment.file_size)?;
        Some(View {
            bytes,
            base: segment.virt,
        })
    });
    tables::parse(&views.collect::<Vec<_>>()).ok_or(KallsymsError::NotFound)
}

/// The symbols of the kernel in the guest-physical addresses `range`. The kernel maps the first
/// byte of the range at the virtual address `mapped_at`.
///
/// The symbols have the kernel's run-time addresses. Kernels from 7.0 on store addresses relative
/// to the tables, so that `mapped_at` decides; older kernels have relocated the stored addresses
/// together with the kernel. (A kernel in its first instructions has not relocated anything yet:
/// the symbols are at link-time addresses.) Unreadable pages of the range count as zeroes.
///
/// # Errors
///
/// If the range is empty, is larger than any kernel, or holds no tables.
pub fn from_guest<M: PhysMemory + ?Sized>(
    memory: &M,
    range: Range<Gpa>,
    mapped_at: Gva,
) -> Result<SymbolTable, KallsymsError> {
    let start = range.start;
    let bytes = range.end.offset_from(start).unwrap_or(0);
    let len = usize::try_from(bytes)
        .ok()
        .filter(|_| (1..=MAX_KERNEL_BYTES).contains(&bytes));
    let mut copy = vec![0; len.ok_or(KallsymsError::Range { start, bytes })?];
    let mut at = start;
    for piece in copy.chunks_mut(PIECE_BYTES) {
        if memory.read(at, piece).is_err() {
            copy_pages(memory, at, piece);
        }
        at = at.wrapping_add(piece.len() as u64);
    }
    tables::parse(&[View {
        bytes: &copy,
        base: mapped_at,
    }])
    .ok_or(KallsymsError::NotFound)
}

fn copy_pages<M: PhysMemory + ?Sized>(memory: &M, start: Gpa, piece: &mut [u8]) {
    let mut at = start;
    for page in piece.chunks_mut(PAGE_LEN) {
        if memory.read(at, page).is_err() {
            page.fill(0);
        }
        at = at.wrapping_add(page.len() as u64);
    }
}
