//! The detour memory: the VMM's own, in the guest's physical address space, far above its RAM.
//!
//! No memory map that the guest is given tells of it. It has two parts, each a KVM slot: one that the guest may read
//! and execute, and one that it may write. Nothing there has a device or RAM behind it otherwise.

use std::sync::Arc;

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::ram::{RamError, map};
use super::slots::{PageRange, RamRegion, SlotError};

/// Where it is put if the guest's physical addresses reach that far and its RAM does not.
const PREFERRED_GPA: u64 = 0x10_0000_0000;
/// What it is aligned to, and kept away from RAM and the end of the address space by.
const GIB: u64 = 1 << 30;

/// How large the parts are, bytes; multiples of 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetourSize {
    /// Of what the guest cannot write. It comes first.
    pub read_only: u64,
    /// Of what it can.
    pub writable: u64,
}

/// There is no detour memory.
#[derive(Debug, thiserror::Error)]
pub enum DetourMapError {
    /// The guest's physical address space is full.
    #[error("no guest-physical address is free for detour memory")]
    NoPlace,
    /// The host has none.
    #[error(transparent)]
    Memory(#[from] RamError),
    /// KVM did not take it.
    #[error(transparent)]
    Slot(#[from] SlotError),
}

/// The memory itself. Cloning shares it.
#[derive(Clone, Debug)]
pub struct DetourMemory {
    memory: Arc<GuestMemoryMmap>,
    gpa: GuestAddress,
    size: DetourSize,
}

impl DetourMemory {
    pub(crate) fn new(gpa: GuestAddress, size: DetourSize) -> Result<Self, RamError> {
        let bytes = size.read_only + size.writable;
        let region = (gpa, usize::try_from(bytes).unwrap_or(usize::MAX));
        let memory = map(&[region])?;
        Ok(Self {
            memory: Arc::new(memory),
            gpa,
            size,
        })
    }

    /// Where it begins, guest-physical.
    #[must_use]
    pub fn gpa(&self) -> GuestAddress {
        self.gpa
    }

    /// Its bytes, by guest-physical address: writable here, whatever the guest may do.
    #[must_use]
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    pub(super) fn region(&self) -> Option<RamRegion> {
        self.memory.iter().next().map(|region| RamRegion {
            gpa: self.gpa.0,
            bytes: region.len(),
            host: region.as_ptr() as u64,
        })
    }

    pub(super) fn read_only(&self) -> PageRange {
        PageRange {
            start: self.gpa,
            end: GuestAddress(self.gpa.0 + self.size.read_only),
        }
    }
}

/// Where detour memory can be in a machine whose RAM ends at `ram_end` and whose physical addresses have so many bits:
/// the gigabyte that it keeps to itself. `None` if there is none.
pub(crate) fn detour_place(ram_end: u64, physical_bits: u32) -> Option<PageRange> {
    let limit = 1u64 << physical_bits.clamp(32, 52);
    let above_ram = ram_end.max(1 << 32).checked_next_multiple_of(GIB)?;
    let start = if PREFERRED_GPA + GIB <= limit {
        PREFERRED_GPA.max(above_ram)
    } else {
        limit.checked_sub(GIB)?.max(above_ram)
    };
    (start + GIB <= limit).then_some(PageRange {
        start: GuestAddress(start),
        end: GuestAddress(start + GIB),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(ram_end: u64, bits: u32) -> Option<u64> {
        detour_place(ram_end, bits).map(|place| place.start.0)
    }

    #[test]
    fn it_lies_above_ram_and_below_the_end_of_the_address_space() {
        assert_eq!(start(128 << 20, 40), Some(PREFERRED_GPA));
        assert_eq!(start(128 << 20, 48), Some(PREFERRED_GPA));
        // 64 GiB are all there is.
        assert_eq!(start(128 << 20, 36), Some((1 << 36) - GIB));
        assert_eq!(start((100 << 30) + 1, 40), Some(101 << 30));
        assert_eq!(start((1 << 36) - GIB, 36), Some((1 << 36) - GIB));
        assert_eq!(start((1 << 36) - 1, 36), None);
        assert_eq!(start(128 << 20, 32), None, "it would be among the devices");
        assert_eq!(start(1 << 52, 52), None);
    }

    #[test]
    fn its_first_part_is_read_only() {
        let size = DetourSize {
            read_only: 0x3000,
            writable: 0x2000,
        };
        let memory = DetourMemory::new(GuestAddress(PREFERRED_GPA), size).expect("memory");
        let region = memory.region().expect("a region");
        assert_eq!((region.gpa, region.bytes), (PREFERRED_GPA, 0x5000));
        let read_only = memory.read_only();
        assert_eq!(read_only.end.0 - read_only.start.0, 0x3000);
        assert_eq!(read_only.start, memory.gpa());
    }
}
