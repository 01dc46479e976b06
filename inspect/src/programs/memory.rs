//! The memory of a program and the pages of its files, as bytes.

use address::Gva;

use super::address_space::AddressSpace;
use super::elf::Bytes;
use super::page_cache::CachedFile;

/// The program's memory by its page tables.
pub(super) struct Resident<'p>(pub(super) &'p AddressSpace<'p>);

impl Bytes for Resident<'_> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
        self.0.read(Gva(at), buf)
    }
}

/// The bytes of the file that is mapped at an address, as far as they are in memory.
pub(super) struct InCache<'p>(pub(super) CachedFile<'p>);

impl Bytes for InCache<'_> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
        self.0.read(at, buf)
    }
}

/// A file that is all in the program's memory, from an address on: the kernel's own library (vdso).
pub(super) struct Image<'p>(pub(super) &'p AddressSpace<'p>, pub(super) Gva);

impl Bytes for Image<'_> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
        self.0.read(self.1.wrapping_add(at), buf)
    }
}
