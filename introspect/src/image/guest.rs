//! The kernel in a guest's memory.

use address::{Gpa, Gva};

use super::{ImageSource, NotInImage};
use crate::PhysMemory;

/// A kernel in guest memory, contiguous in physical memory as placed by the loader.
///
/// After boot the kernel has freed the init section, with most tables of patch sites. Read these
/// tables from the file, or early in the boot.
#[derive(Clone, Copy, Debug)]
pub struct GuestImage<M> {
    memory: M,
    link_base: Gva,
    load_base: Gpa,
    slide: i64,
}

impl<M: PhysMemory> GuestImage<M> {
    /// The kernel linked at `link_base` and loaded at `load_base`. `slide` is the offset added to
    /// the addresses stored in the image: 0 before the kernel relocates itself, and without KASLR.
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
