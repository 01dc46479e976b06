//! A range of kernel bytes, with the address in the kernel's mapping.

use address::Gva;

/// Bytes that may hold the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) bytes: &'a [u8],
    /// The virtual address of the first byte.
    pub(super) base: Gva,
}

impl View<'_> {
    pub(super) fn u8(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    pub(super) fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.array(at)?))
    }

    pub(super) fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.array(at)?))
    }

    pub(super) fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.array(at)?))
    }

    pub(super) fn slice(&self, at: usize, len: usize) -> Option<&[u8]> {
        self.bytes.get(at..at.checked_add(len)?)
    }

    pub(super) const fn address(&self, at: usize) -> Gva {
        self.base.wrapping_add(at as u64)
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.slice(at, N)?.try_into().ok()
    }
}
