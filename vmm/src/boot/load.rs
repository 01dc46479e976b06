//! Loading a kernel to the addresses that the kernel expects.

use object::LittleEndian;
use object::elf::{EM_X86_64, FileHeader64, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::header::{HeaderError, SetupHeader};
use super::layout::{HIGH_RAM_GPA, MMIO_GAP_START_GPA};

/// Load address of a bzImage without a preferred address.
const DEFAULT_BZIMAGE_GPA: GuestAddress = GuestAddress(0x100_0000);
/// Distance of the 64-bit entry point from the start of the protected-mode kernel.
const ENTRY_64_OFFSET: u64 = 0x200;

/// Why a kernel could not be put into guest memory.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The ELF headers are invalid.
    #[error("its ELF headers are damaged")]
    Elf(#[from] object::Error),
    /// The ELF file is for another machine.
    #[error("its ELF machine type is {machine}, a kernel for x86-64 (62) is needed")]
    WrongMachine {
        /// `e_machine`.
        machine: u16,
    },
    /// The ELF file holds nothing to load.
    #[error("its ELF file has no loadable segment")]
    NoSegments,
    /// A segment's bytes lie behind the end of the file.
    #[error("it is truncated: its segment at file offset 0x{offset:x} has 0x{bytes:x} bytes")]
    Truncated {
        /// Offset of the segment in the file.
        offset: u64,
        /// Its bytes in the file.
        bytes: u64,
    },
    /// A segment overlaps the memory of the VMM's boot tables, or addresses without RAM.
    #[error(
        "its segment at guest-physical 0x{start:x}, 0x{bytes:x} bytes, is outside \
         0x{:x}..0x{:x}, where a kernel can be loaded",
        HIGH_RAM_GPA.0,
        MMIO_GAP_START_GPA.0
    )]
    Misplaced {
        /// Start of the segment.
        start: u64,
        /// Size in bytes.
        bytes: u64,
    },
    /// The entry point lies in no segment.
    #[error("its entry point 0x{entry:x} is in no loadable segment")]
    Entry {
        /// `e_entry`.
        entry: u64,
    },
    /// The image is no bzImage.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The bzImage is for 32-bit machines or older than Linux 3.8.
    #[error("it has no 64-bit entry point (a 32-bit kernel, or one older than Linux 3.8)")]
    No64BitEntry,
    /// The guest has too little memory.
    #[error(
        "it needs memory up to 0x{needed:x}, the guest has up to 0x{have:x}; \
         give it at least {} MiB",
        needed.div_ceil(1 << 20)
    )]
    MemoryTooSmall {
        /// End of the memory that the kernel needs.
        needed: u64,
        /// End of the RAM below the MMIO gap.
        have: u64,
    },
}

/// A range of guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamRange {
    /// The first byte.
    pub start: GuestAddress,
    /// Size in bytes.
    pub bytes: u64,
}

impl RamRange {
    /// The first byte behind the range.
    #[must_use]
    pub fn end(&self) -> GuestAddress {
        GuestAddress(self.start.0.saturating_add(self.bytes))
    }

    fn contains(&self, address: u64) -> bool {
        address
            .checked_sub(self.start.0)
            .is_some_and(|offset| offset < self.bytes)
    }
}

/// A kernel in guest memory.
#[derive(Clone, Debug)]
pub struct LoadedKernel {
    /// The entry point, in 64-bit mode.
    pub entry: GuestAddress,
    /// The memory of the kernel, BSS included, in the order of the file.
    pub ranges: Vec<RamRange>,
    /// End of the memory to keep free until the kernel manages its memory itself.
    pub end: GuestAddress,
    /// The setup header for the zero page.
    pub header: SetupHeader,
}

/// Loads an ELF kernel to its segments' physical addresses.
///
/// Memory must be zeroed: the BSS is not written. The header is [`SetupHeader::for_elf`].
///
/// # Errors
///
/// When the file is damaged, for another machine, or does not fit into the guest's memory.
pub fn load_elf(memory: &GuestMemoryMmap, elf: &[u8]) -> Result<LoadedKernel, LoadError> {
    let file = FileHeader64::<LittleEndian>::parse(elf)?;
    let endian = file.endian()?;
    let machine = file.e_machine(endian);
    if machine != EM_X86_64 {
        return Err(LoadError::WrongMachine { machine: machine.0 });
    }
    let segments: Vec<&ProgramHeader64<LittleEndian>> = file
        .program_headers(endian, elf)?
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_LOAD && segment.p_memsz(endian) > 0)
        .collect();

    let mut ranges = Vec::with_capacity(segments.len());
    for segment in &segments {
        // A file part larger than the segment would overwrite the memory behind the segment.
        let bytes = segment.p_memsz(endian).max(segment.p_filesz(endian));
        ranges.push(placed(segment.p_paddr(endian), bytes)?);
    }
    let end = ranges
        .iter()
        .map(RamRange::end)
        .max()
        .ok_or(LoadError::NoSegments)?;
    let too_small = || LoadError::MemoryTooSmall {
        needed: end.0,
        have: ram_end(memory),
    };
    if end.0 > ram_end(memory) {
        return Err(too_small());
    }
    for (segment, range) in segments.iter().zip(&ranges) {
        let bytes = segment
            .data(endian, elf)
            .map_err(|()| LoadError::Truncated {
                offset: segment.p_offset(endian),
                bytes: segment.p_filesz(endian),
            })?;
        memory
            .write_slice(bytes, range.start)
            .map_err(|_| too_small())?;
    }
    let entry = entry_gpa(file.e_entry(endian), &ranges, |index| {
        segments[index].p_vaddr(endian)
    })?;
    Ok(LoadedKernel {
        entry,
        ranges,
        end,
        header: SetupHeader::for_elf(),
    })
}

/// Loads the protected-mode part of a bzImage, which will decompress itself.
///
/// # Errors
///
/// When the image is damaged, has no 64-bit entry point, or does not fit into the guest's memory.
pub fn load_bzimage(memory: &GuestMemoryMmap, image: &[u8]) -> Result<LoadedKernel, LoadError> {
    let header = SetupHeader::parse(image)?;
    if !header.has_64bit_entry() {
        return Err(LoadError::No64BitEntry);
    }
    // Without the whole payload, the guest would decompress missing bytes.
    header.payload_range(image)?;
    let kernel = &image[header.setup_bytes()..];
    let start = match header.pref_address() {
        0 => DEFAULT_BZIMAGE_GPA.0,
        address => address,
    };
    let file_bytes = u64::try_from(kernel.len()).unwrap_or(u64::MAX);
    let range = placed(start, file_bytes.max(u64::from(header.init_size())))?;
    let end = range.end();
    let have = ram_end(memory);
    if end.0 > have || memory.write_slice(kernel, range.start).is_err() {
        return Err(LoadError::MemoryTooSmall {
            needed: end.0,
            have,
        });
    }
    let entry = GuestAddress(start + ENTRY_64_OFFSET);
    Ok(LoadedKernel {
        entry,
        ranges: vec![range],
        end,
        header,
    })
}

/// Checks that a kernel may lie at `start`.
fn placed(start: u64, bytes: u64) -> Result<RamRange, LoadError> {
    let end = start
        .checked_add(bytes)
        .filter(|&end| end <= MMIO_GAP_START_GPA.0);
    if start < HIGH_RAM_GPA.0 || end.is_none() {
        return Err(LoadError::Misplaced { start, bytes });
    }
    Ok(RamRange {
        start: GuestAddress(start),
        bytes,
    })
}

/// The physical entry point: the boot CPU enters the kernel with an identity mapping. Linux's
/// `e_entry` is physical; other kernels give the address at which they are linked.
fn entry_gpa(
    entry: u64,
    ranges: &[RamRange],
    virtual_start: impl Fn(usize) -> u64,
) -> Result<GuestAddress, LoadError> {
    if ranges.iter().any(|range| range.contains(entry)) {
        return Ok(GuestAddress(entry));
    }
    ranges
        .iter()
        .enumerate()
        .find_map(|(index, range)| {
            let offset = entry.checked_sub(virtual_start(index))?;
            (offset < range.bytes).then(|| GuestAddress(range.start.0 + offset))
        })
        .ok_or(LoadError::Entry { entry })
}

/// End of the RAM that starts at zero.
fn ram_end(memory: &GuestMemoryMmap) -> u64 {
    memory
        .find_region(GuestAddress(0))
        .map_or(0, |region| region.len())
}

#[cfg(test)]
mod tests;
