//! The bytes of an object, maybe with missing pages.

use address::{Gva, PAGE_BYTES};

use crate::view::KernelView;

/// The kernel's largest objects that are shown at once; `struct pglist_data` has 180 KiB.
const MAX_BYTES: u64 = 256 << 10;

/// An object in memory, or in no memory at all.
#[derive(Debug)]
pub(super) struct Object {
    at: Gva,
    /// The bytes by pages; missing pages have none. Each with the offset of the first byte in the object.
    pieces: Vec<(u64, Option<Vec<u8>>)>,
    len: u64,
}

impl Object {
    /// The `len` bytes at `at`, or fewer if they are too many.
    pub(super) fn read(view: &KernelView<'_>, at: Gva, len: u64) -> Self {
        let len = len.min(MAX_BYTES);
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len {
            let here = at.wrapping_add(done);
            let in_page = (PAGE_BYTES - here.page_offset()).min(len - done);
            let mut bytes = vec![0; usize::try_from(in_page).unwrap_or(0)];
            let is_there = view.read(here, &mut bytes).is_ok();
            pieces.push((done, is_there.then_some(bytes)));
            done += in_page;
        }
        Self { at, pieces, len }
    }

    /// Whether no byte of the object is there.
    pub(super) fn is_missing(&self) -> bool {
        !self.pieces.is_empty() && self.pieces.iter().all(|(_, piece)| piece.is_none())
    }

    /// A value that is not in memory.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        Self {
            at: Gva(0),
            pieces: vec![(0, Some(bytes.to_vec()))],
            len: bytes.len() as u64,
        }
    }

    /// The `len` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// The first address that is not there; `None` if the object ends before.
    pub(super) fn bytes(&self, offset: u64, len: u64) -> Result<Vec<u8>, Option<Gva>> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        let end = end.ok_or(None)?;
        let first = self.pieces.partition_point(|(start, _)| *start <= offset);
        let mut bytes = Vec::new();
        for (start, piece) in &self.pieces[first.saturating_sub(1)..] {
            if *start >= end {
                break;
            }
            let from = offset.saturating_sub(*start);
            let Some(piece) = piece else {
                return Err(Some(self.at.wrapping_add((*start).max(offset))));
            };
            let to = (end - start).min(piece.len() as u64);
            let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            bytes.extend(piece.get(within(from)..within(to)).unwrap_or_default());
        }
        Ok(bytes)
    }
}
