//! Memory of a kernel for tests.

use address::Gva;

use crate::{ImageSource, NotInImage};

/// Memory from an address on. Positions are offsets from there.
pub(super) struct Image {
    base: Gva,
    bytes: Vec<u8>,
}

impl Image {
    pub(super) fn zeroed(base: Gva, len: usize) -> Self {
        let bytes = vec![0; len];
        Self { base, bytes }
    }

    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).expect("small");
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes a pointer to the byte at `to`.
    pub(super) fn pointer(&mut self, at: u64, to: u64) {
        self.put(at, &self.base.wrapping_add(to).0.to_le_bytes());
    }

    /// Writes the distance of 32 bits to the byte at `to`.
    pub(super) fn near(&mut self, at: u64, to: u64) {
        let distance = i32::try_from(to.cast_signed() - at.cast_signed()).expect("near");
        self.put(at, &distance.to_le_bytes());
    }

    /// Reads the memory as code.
    pub(super) fn reader(&self) -> impl FnMut(Gva, &mut [u8]) -> bool {
        |at, buf| self.read_linked(at, buf).is_ok()
    }
}

impl ImageSource for Image {
    fn read_linked(&self, address: Gva, buf: &mut [u8]) -> Result<(), NotInImage> {
        let len = buf.len();
        let found = address.offset_from(self.base).and_then(|at| {
            let at = usize::try_from(at).ok()?;
            self.bytes.get(at..at.checked_add(len)?)
        });
        buf.copy_from_slice(found.ok_or(NotInImage { address, len })?);
        Ok(())
    }
}
