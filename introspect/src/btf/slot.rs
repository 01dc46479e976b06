//! A number's place in a struct.

use super::{Btf, StructId};

/// The place of a little-endian number in a struct's bytes, pointers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    at: usize,
    len: usize,
}

impl Slot {
    /// The place of the member of `id` at `path`; `None` for a bit field, and for a member of more than
    /// 8 bytes.
    #[must_use]
    pub fn find(btf: &Btf, id: StructId, path: &str) -> Option<Self> {
        let member = btf.member(id, path)?;
        let len = usize::try_from(member.size_bytes).ok()?;
        let fits = member.bits.is_none() && (1..=8).contains(&len);
        Some(Self {
            at: usize::try_from(member.offset_bytes).ok()?,
            len,
        })
        .filter(|_| fits)
    }

    /// The offset of the number's first byte.
    #[must_use]
    pub const fn at(self) -> usize {
        self.at
    }

    /// The size of the number, 1 to 8 bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        self.len
    }

    /// The offset behind the number's last byte.
    #[must_use]
    pub const fn end(self) -> usize {
        self.at.saturating_add(self.len)
    }

    /// The same place, in a struct embedded `by` bytes from the beginning of another.
    #[must_use]
    pub fn shifted(self, by: usize) -> Option<Self> {
        Some(Self {
            at: self.at.checked_add(by)?,
            ..self
        })
    }

    /// The number; `None` if the bytes end before the number's end.
    #[must_use]
    pub fn read(self, bytes: &[u8]) -> Option<u64> {
        let held = bytes.get(self.at..self.at.checked_add(self.len)?)?;
        let mut wide = [0; 8];
        wide.get_mut(..self.len)?.copy_from_slice(held);
        Some(u64::from_le_bytes(wide))
    }
}
