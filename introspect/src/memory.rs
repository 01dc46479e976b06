//! Guest-physical memory, live or dumped.

use address::Gpa;
use thiserror::Error;

/// A range of guest-physical memory not readable in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot read {len} bytes of guest-physical memory at {gpa}")]
pub struct Unreadable {
    /// The first address of the read.
    pub gpa: Gpa,
    /// The number of requested bytes.
    pub len: usize,
}

/// Readable guest-physical memory.
///
/// A live guest may write during a read: each call returns some mixture of old and new bytes, and
/// two calls may disagree. Bytes read through the trait are never to be trusted.
pub trait PhysMemory {
    /// Fills `buf` from `gpa` on.
    ///
    /// # Errors
    ///
    /// If any byte of the range is not memory; the contents of `buf` are then unspecified.
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable>;

    /// Reads one byte.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_u8(&self, gpa: Gpa) -> Result<u8, Unreadable> {
        let mut bytes = [0; 1];
        self.read(gpa, &mut bytes)?;
        Ok(bytes[0])
    }

    /// Reads a little-endian 16-bit value.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_u16(&self, gpa: Gpa) -> Result<u16, Unreadable> {
        let mut bytes = [0; 2];
        self.read(gpa, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Reads a little-endian 32-bit value.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_u32(&self, gpa: Gpa) -> Result<u32, Unreadable> {
        let mut bytes = [0; 4];
        self.read(gpa, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads a little-endian 64-bit value.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_u64(&self, gpa: Gpa) -> Result<u64, Unreadable> {
        let mut bytes = [0; 8];
        self.read(gpa, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

impl<M: PhysMemory + ?Sized> PhysMemory for &M {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        (**self).read(gpa, buf)
    }

    fn read_u64(&self, gpa: Gpa) -> Result<u64, Unreadable> {
        (**self).read_u64(gpa)
    }
}

impl<M: PhysMemory + ?Sized> PhysMemory for std::sync::Arc<M> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        (**self).read(gpa, buf)
    }

    fn read_u64(&self, gpa: Gpa) -> Result<u64, Unreadable> {
        (**self).read_u64(gpa)
    }
}

/// A contiguous range of guest-physical memory held in a vector: a memory dump, or a test's guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlatMemory {
    base: Gpa,
    bytes: Vec<u8>,
}

impl FlatMemory {
    /// Memory beginning at `base` with `bytes`.
    #[must_use]
    pub const fn new(base: Gpa, bytes: Vec<u8>) -> Self {
        Self { base, bytes }
    }

    /// `len` bytes of zeroes from address 0 on.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::new(Gpa(0), vec![0; len])
    }

    /// The address of the first byte.
    #[must_use]
    pub const fn base(&self) -> Gpa {
        self.base
    }

    /// The bytes, the first of them at [`base`](Self::base).
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Stores `bytes` from `gpa` on.
    ///
    /// # Errors
    ///
    /// If the range is not all within the memory; then no byte is stored.
    pub fn write(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unreadable> {
        let range = self.range(gpa, bytes.len())?;
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn range(&self, gpa: Gpa, len: usize) -> Result<std::ops::Range<usize>, Unreadable> {
        let start = gpa
            .offset_from(self.base)
            .and_then(|offset| usize::try_from(offset).ok());
        let end = start.and_then(|start| start.checked_add(len));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.bytes.len() => Ok(start..end),
            _ => Err(Unreadable { gpa, len }),
        }
    }
}

impl PhysMemory for FlatMemory {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let range = self.range(gpa, buf.len())?;
        buf.copy_from_slice(&self.bytes[range]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_little_endian_within_bounds_only() {
        let memory = FlatMemory::new(Gpa(0x1000), (1..=16).collect());
        assert_eq!(memory.read_u8(Gpa(0x1000)), Ok(1));
        assert_eq!(memory.read_u16(Gpa(0x1001)), Ok(0x0302));
        assert_eq!(memory.read_u32(Gpa(0x100c)), Ok(0x100f_0e0d));
        assert_eq!(memory.read_u64(Gpa(0x1008)), Ok(0x100f_0e0d_0c0b_0a09));
        for gpa in [Gpa(0xfff), Gpa(0x1009), Gpa(0x1010), Gpa(u64::MAX)] {
            assert_eq!(memory.read_u64(gpa), Err(Unreadable { gpa, len: 8 }));
        }
        memory
            .read(Gpa(0x1010), &mut [])
            .expect("an empty read at the very end");
    }

    #[test]
    fn a_write_that_does_not_fit_stores_nothing() {
        let mut memory = FlatMemory::zeroed(4);
        assert!(memory.write(Gpa(2), &[1, 2, 3]).is_err());
        assert_eq!(memory.bytes(), [0; 4]);
        memory.write(Gpa(1), &[1, 2, 3]).expect("fits");
        assert_eq!(memory.bytes(), [0, 1, 2, 3]);
    }

    #[test]
    fn the_error_names_the_address_in_hex() {
        let error = FlatMemory::zeroed(1)
            .read_u64(Gpa(0x40))
            .expect_err("too short");
        assert_eq!(
            error.to_string(),
            "cannot read 8 bytes of guest-physical memory at 0x40"
        );
    }
}
