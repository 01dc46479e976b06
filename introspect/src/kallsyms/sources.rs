//! Where the tables come from.

use std::ops::Range;

use super::{KallsymsError, symtab, tables, view::View};
use crate::{Gpa, Gva, KernelImage, PhysMemory, SymbolTable};

/// The kernel is mapped in a gigabyte at most, and today's take a tenth of it.
const MAX_KERNEL_BYTES: u64 = 256 << 20;
/// Guest memory is copied in pieces of this size, and page by page where one of them cannot be read
/// in full.
const PIECE_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// The symbols of the decompressed kernel ELF in `bytes`, at link-time addresses.
///
/// # Errors
///
/// When this is no ELF file for x86-64, or no symbols are found.
pub fn from_elf(bytes: &[u8]) -> Result<SymbolTable, KallsymsError> {
    from_image(&KernelImage::parse(bytes)?)
}

/// The symbols of `image`, at link-time addresses: its ELF symbol table if it has one, else its
/// kallsyms tables.
///
/// # Errors
///
/// When it has neither.
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

/// The symbols of the kernel that lies in the guest-physical addresses `range`, whose first byte it
/// has at the virtual address `mapped_at`.
///
/// The symbols have the addresses at which the kernel runs: kernels from 7.0 on store them relative
/// to where the tables are, so that `mapped_at` decides, and older ones have moved them together
/// with themselves. (One that is still in its first instructions has not moved anything yet: its
/// symbols are at link-time addresses.) Pages of the range that cannot be read count as zeroes.
///
/// # Errors
///
/// When the range is empty or larger than any kernel, or has no tables in it.
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
    for page in piece.chunks_mut(PAGE_BYTES) {
        if memory.read(at, page).is_err() {
            page.fill(0);
        }
        at = at.wrapping_add(page.len() as u64);
    }
}
