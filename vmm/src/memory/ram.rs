//! The guest's RAM in this process.

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::slots::RamRegion;

/// The guest's RAM could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes of guest memory")]
pub struct RamError {
    /// How much was asked for.
    pub bytes: u64,
    /// The cause.
    #[source]
    pub source: vm_memory::mmap::FromRangesError,
}

/// The guest's RAM, mapped and zero.
#[derive(Debug)]
pub(crate) struct Ram {
    guest: GuestMemoryMmap,
}

impl Ram {
    /// Maps RAM for these guest-physical regions. The host gives pages when they are touched.
    ///
    /// # Errors
    ///
    /// When the host has no address space for it.
    pub(crate) fn new(regions: &[(GuestAddress, usize)]) -> Result<Self, RamError> {
        let bytes = regions.iter().map(|(_, bytes)| *bytes as u64).sum();
        let guest =
            GuestMemoryMmap::from_ranges(regions).map_err(|source| RamError { bytes, source })?;
        Ok(Self { guest })
    }

    /// The memory by guest-physical address.
    #[must_use]
    pub(crate) fn guest(&self) -> &GuestMemoryMmap {
        &self.guest
    }

    /// Whether this guest-physical address is RAM.
    #[must_use]
    pub(crate) fn contains(&self, gpa: GuestAddress) -> bool {
        self.guest.address_in_range(gpa)
    }

    /// The first guest-physical address behind all of it.
    pub(crate) fn end(&self) -> u64 {
        self.guest.last_addr().0.saturating_add(1)
    }

    pub(crate) fn regions(&self) -> Vec<RamRegion> {
        self.guest
            .iter()
            .map(|region| RamRegion {
                gpa: region.start_addr().0,
                bytes: region.len(),
                host: region.as_ptr() as u64,
            })
            .collect()
    }
}
