//! The detour memory: memory of the VMM in the guest's physical address space, far above the guest's RAM.
//!
//! The guest's memory maps do not list the detour memory. The memory has two parts, each a KVM slot: the guest may read
//! and execute the first part, and write the second part. The range is otherwise empty: no device, no RAM.

use std::sync::Arc;

use address::Gpa;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::error::RamError;
use super::page_range::PageRange;
use super::ram::{RamRegion, map};

/// Address of detour memory, if the guest's physical addresses reach far enough and the guest's RAM ends below.
const PREFERRED_GPA: u64 = 0x10_0000_0000;
/// Alignment and size of the range for detour memory.
const GIB: u64 = 1 << 30;

/// Sizes of the two parts in bytes; multiples of 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetourSize {
    /// Size of the part that the guest cannot write. The read-only part comes first.
    pub read_only: u64,
    /// Size of the part that the guest can write.
    pub writable: u64,
}

/// The detour memory. A clone shares the bytes.
#[derive(Clone, Debug)]
pub struct DetourMemory {
    memory: Arc<GuestMemoryMmap>,
    gpa: Gpa,
    size: DetourSize,
}

impl DetourMemory {
    pub(crate) fn new(gpa: Gpa, size: DetourSize) -> Result<Self, RamError> {
        let bytes = size.read_only + size.writable;
        let region = (
            GuestAddress(gpa.0),
            usize::try_from(bytes).unwrap_or(usize::MAX),
        );
        let memory = map(&[region])?;
        Ok(Self {
            memory: Arc::new(memory),
            gpa,
            size,
        })
    }

    /// Guest-physical start address.
    #[must_use]
    pub fn gpa(&self) -> Gpa {
        self.gpa
    }

    /// The bytes, by guest-physical address. The VMM can write both parts.
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
            end: Gpa(self.gpa.0 + self.size.read_only),
        }
    }
}

/// The gigabyte to keep free for detour memory, above RAM that ends at `ram_end` and below the end of the address space.
/// `physical_bits` is the width of a guest-physical address. `None` if no gigabyte is free.
pub(crate) fn detour_place(ram_end: u64, physical_bits: u32) -> Option<PageRange> {
    let limit = 1u64 << physical_bits.clamp(32, 52);
    let above_ram = ram_end.max(1 << 32).checked_next_multiple_of(GIB)?;
    let start = if PREFERRED_GPA + GIB <= limit {
        PREFERRED_GPA.max(above_ram)
    } else {
        limit.checked_sub(GIB)?.max(above_ram)
    };
    (start + GIB <= limit).then_some(PageRange {
        start: Gpa(start),
        end: Gpa(start + GIB),
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
        // The address space ends at 64 GiB.
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
        let memory = DetourMemory::new(Gpa(PREFERRED_GPA), size).expect("memory");
        let region = memory.region().expect("a region");
        assert_eq!((region.gpa, region.bytes), (PREFERRED_GPA, 0x5000));
        let read_only = memory.read_only();
        assert_eq!(read_only.end.0 - read_only.start.0, 0x3000);
        assert_eq!(read_only.start, memory.gpa());
    }
}
