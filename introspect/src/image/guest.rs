//! The kernel as it lies in a guest's memory.

use super::{ImageSource, NotInImage};
use crate::{Gpa, Gva, PhysMemory};

/// A kernel in guest memory, contiguous in physical memory as the loader placed it.
///
/// What the kernel frees after boot (its init section, with most tables of patch sites) is gone by
/// then: those are to be read from the file, or early.
#[derive(Clone, Copy, Debug)]
pub struct GuestImage<M> {
    memory: M,
    link_base: Gva,
    load_base: Gpa,
    slide: i64,
}

impl<M: PhysMemory> GuestImage<M> {
    /// The kernel linked at `link_base` and loaded at `load_base`, whose stored addresses have been
    /// moved by `slide` (0 before it relocated itself, and without KASLR).
    #[must_use]
    pub const fn new(memory: M, link_base: Gva, load_base: Gpa, slide: i64) -> Self {
        Self {
            memory,
            link_base,
            load_base,
            slide,
        }
    }
}

impl<M: PhysMemory> ImageSource for GuestImage<M> {
    fn read_linked(&self, address: Gva, buf: &mut [u8]) -> Result<(), NotInImage> {
        let missing = NotInImage {
            address,
            len: buf.len(),
        };
        let offset = address.offset_from(self.link_base).ok_or(missing)?;
        let gpa = self.load_base.checked_add(offset).ok_or(missing)?;
        self.memory.read(gpa, buf).map_err(|_| missing)
    }

    fn slide(&self) -> i64 {
        self.slide
    }
}
