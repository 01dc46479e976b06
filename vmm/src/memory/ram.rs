//! The guest's RAM in this process.

use address::Gpa;
use rustix::mm::{Advice, madvise};
use vm_memory::{
    GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

use super::error::RamError;

/// A range of RAM or detour memory, and its address in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RamRegion {
    pub(crate) gpa: u64,
    pub(crate) bytes: u64,
    pub(crate) host: u64,
}

/// The guest's RAM, mapped and zero.
#[derive(Debug)]
pub(crate) struct Ram {
    guest: GuestMemoryMmap,
}

impl Ram {
    /// Maps RAM for the guest-physical `regions`. The host allocates each page at the first access. Core dumps of the process
    /// exclude the RAM.
    ///
    /// # Errors
    ///
    /// See [`RamError`].
    pub(crate) fn new(regions: &[(GuestAddress, usize)]) -> Result<Self, RamError> {
        Ok(Self {
            guest: map(regions)?,
        })
    }

    /// The memory by guest-physical address.
    #[must_use]
    pub(crate) fn guest(&self) -> &GuestMemoryMmap {
        &self.guest
    }

    /// Whether `gpa` is RAM.
    #[must_use]
    pub(crate) fn contains(&self, gpa: Gpa) -> bool {
        self.guest.address_in_range(GuestAddress(gpa.0))
    }

    /// The first guest-physical address behind all RAM.
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

/// Maps guest memory, and excludes the memory from core dumps of the process.
pub(super) fn map(regions: &[(GuestAddress, usize)]) -> Result<GuestMemoryMmap, RamError> {
    let bytes = regions.iter().map(|(_, bytes)| *bytes as u64).sum();
    let memory =
        GuestMemoryMmap::from_ranges(regions).map_err(|source| RamError::Map { bytes, source })?;
    for region in memory.iter() {
        forbid_dump(region).map_err(RamError::CoreDumps)?;
    }
    Ok(memory)
}

#[expect(unsafe_code, reason = "advice on memory takes an address")]
fn forbid_dump(region: &GuestRegionMmap) -> rustix::io::Result<()> {
    let len = region.size();
    // SAFETY: the region has mapped exactly these bytes, and the advice changes none of them.
    unsafe { madvise(region.as_ptr().cast(), len, Advice::LinuxDontDump) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_memory_is_not_in_core_dumps() {
        let ram = Ram::new(&[(GuestAddress(0), 1 << 20)]).expect("memory");
        let host = ram.regions()[0].host;
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        // The host merges neighbouring mappings with equal flags.
        let mut is_here = false;
        let flags = maps.lines().find_map(|line| {
            if let Some((from, to)) = line.split(' ').next().and_then(|it| it.split_once('-'))
                && let (Ok(from), Ok(to)) =
                    (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
            {
                is_here = (from..to).contains(&host);
            }
            line.strip_prefix("VmFlags:").filter(|_| is_here)
        });
        let flags = flags.expect("the flags of the mapping");
        assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
    }
}
