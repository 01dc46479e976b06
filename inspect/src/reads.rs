//! Reads with a common bound.

use std::cell::Cell;

use address::Gva;
use introspect::btf::Slot;
use thiserror::Error;

use crate::{KernelView, NotReadable};

/// The cost of a read beside the bytes: the walk of the page tables.
const READ_COST_BYTES: usize = 256;

/// Why a part of the kernel's memory was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReadsError {
    /// No memory at the address.
    #[error(transparent)]
    NotReadable(#[from] NotReadable),
    /// The walk has read as much as an answer may cost.
    #[error("the walk needs more than {limit} bytes of reads")]
    TooMuch {
        /// The limit.
        limit: usize,
    },
}

/// A kernel, and what may still be read for an answer.
pub(crate) struct Reads<'v> {
    view: &'v KernelView<'v>,
    limit: usize,
    left: Cell<usize>,
    /// What further answers may cost together.
    reserve: Cell<usize>,
    was_refused: Cell<bool>,
}

impl<'v> Reads<'v> {
    /// Reads of `view` with a total cost of `limit` bytes.
    pub(crate) fn new(view: &'v KernelView<'v>, limit: usize) -> Self {
        Self::for_many(view, limit, limit)
    }

    /// Reads of `view` for many answers, with a cost of `limit` bytes each, and of `total` bytes together.
    pub(crate) fn for_many(view: &'v KernelView<'v>, limit: usize, total: usize) -> Self {
        let granted = limit.min(total);
        Self {
            view,
            limit,
            left: Cell::new(granted),
            reserve: Cell::new(total - granted),
            was_refused: Cell::new(false),
        }
    }

    /// Whether an answer has needed more than was left.
    pub(crate) fn was_refused(&self) -> bool {
        self.was_refused.get()
    }

    /// Begins the next answer.
    pub(crate) fn renew(&self) {
        let all = self.reserve.get().saturating_add(self.left.get());
        let granted = self.limit.min(all);
        self.left.set(granted);
        self.reserve.set(all - granted);
    }

    /// What may still be read, bytes.
    pub(crate) fn left(&self) -> usize {
        self.left.get()
    }

    /// Fills `buf` from `at` on.
    pub(crate) fn fill(&self, at: Gva, buf: &mut [u8]) -> Result<(), ReadsError> {
        self.take(buf.len().saturating_add(READ_COST_BYTES))?;
        Ok(self.view.read(at, buf)?)
    }

    /// Takes `cost` from what may still be read. After the first refusal, nothing may be read.
    pub(crate) fn take(&self, cost: usize) -> Result<(), ReadsError> {
        let left = self.left.get().checked_sub(cost);
        self.left.set(left.unwrap_or(0));
        self.was_refused
            .set(self.was_refused.get() || left.is_none());
        let limit = self.limit;
        left.map(drop).ok_or(ReadsError::TooMuch { limit })
    }

    /// The `len` bytes at `at`; the caller has bounded `len`.
    pub(crate) fn bytes(&self, at: Gva, len: usize) -> Result<Vec<u8>, ReadsError> {
        let mut bytes = vec![0; len];
        self.fill(at, &mut bytes)?;
        Ok(bytes)
    }

    /// The number at `slot` of the struct at `at`.
    pub(crate) fn number(&self, at: Gva, slot: Slot) -> Result<u64, ReadsError> {
        let mut bytes = [0; 8];
        let len = slot.size().min(bytes.len());
        let held = &mut bytes[..len];
        self.fill(at.wrapping_add(slot.at() as u64), held)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The pointer at `slot` of the struct at `at`; `None` for a null pointer.
    pub(crate) fn pointer(&self, at: Gva, slot: Slot) -> Result<Option<Gva>, ReadsError> {
        let pointer = Gva(self.number(at, slot)?);
        Ok((pointer != Gva(0)).then_some(pointer))
    }

    /// The text at `at` up to the first zero, at most `most` bytes.
    pub(crate) fn string(&self, at: Gva, most: usize) -> Result<String, ReadsError> {
        /// Short names are the rule; a read must not run into a page without memory.
        const PIECE_BYTES: u64 = 32;
        let mut text = Vec::new();
        while text.len() < most {
            let at = at.wrapping_add(text.len() as u64);
            let piece = PIECE_BYTES - at.0 % PIECE_BYTES;
            let piece = usize::try_from(piece).unwrap_or(1).min(most - text.len());
            let start = text.len();
            text.resize(start + piece, 0);
            self.fill(at, &mut text[start..])?;
            if text[start..].contains(&0) {
                break;
            }
        }
        Ok(until_zero(&text))
    }
}

/// The text before the first zero. Bytes that are not UTF-8 are replaced.
#[must_use]
pub fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}
