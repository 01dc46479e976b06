//! The decompressed vmlinux.

use std::{
    ops::Range,
    sync::{Arc, LazyLock},
};

use address::{Gpa, Gva};
use object::{
    LittleEndian, elf,
    read::elf::{FileHeader, ProgramHeader},
};
use regex::bytes::Regex;
use thiserror::Error;

use super::{ImageSource, NotInImage};

/// The kernel has four; the parser ignores loadable segments beyond the limit.
const MAX_SEGMENTS: usize = 64;
/// The banner is a line of about 200 bytes.
const MAX_BANNER_BYTES: usize = 512;
/// Kernel addresses have the top bit set; the per-CPU segment of older kernels is linked at 0.
const KERNEL_HALF: u64 = 1 << 63;

/// The first bytes of the banner.
static BANNER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?-u)Linux version [0-9]").expect("a valid pattern"));

/// Why bytes are not a kernel image.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The bytes are not an ELF file, or the ELF file contradicts itself.
    #[error("not a readable 64-bit ELF file")]
    Elf(#[source] object::read::Error),
    /// An ELF file for another processor.
    #[error("an ELF file for machine {machine}, not for x86-64")]
    Machine {
        /// The file's `e_machine`.
        machine: u16,
    },
    /// The file has no loadable segment.
    #[error("the ELF file has no loadable segment")]
    NoSegments,
}

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The offset of the segment's bytes in the file.
    pub file_offset: usize,
    /// The number of the segment's bytes in the file, cut at the end of the file.
    pub file_size: usize,
    /// The segment's size in memory; bytes not in the file are zero.
    pub memory_size: u64,
    /// The segment's link-time physical address.
    pub physical: Gpa,
    /// The segment's link-time virtual address.
    pub virt: Gva,
}

/// The kernel's ELF file.
#[derive(Clone)]
pub struct KernelImage {
    bytes: Arc<[u8]>,
    entry: u64,
    segments: Vec<Segment>,
    banner: Option<String>,
}

impl std::fmt::Debug for KernelImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelImage")
            .field("bytes", &self.bytes.len())
            .field("entry", &self.entry)
            .field("segments", &self.segments)
            .field("banner", &self.banner)
            .finish()
    }
}

impl KernelImage {
    /// Reads the headers of the ELF file in `bytes` and looks for the version banner.
    ///
    /// # Errors
    ///
    /// When `bytes` are not an x86-64 ELF file with something to load.
    pub fn parse(bytes: impl Into<Arc<[u8]>>) -> Result<Self, ImageError> {
        let bytes = bytes.into();
        let header = elf::FileHeader64::<LittleEndian>::parse(&*bytes).map_err(ImageError::Elf)?;
        let endian = header.endian().map_err(ImageError::Elf)?;
        let machine = header.e_machine(endian).0;
        if machine != elf::EM_X86_64.0 {
            return Err(ImageError::Machine { machine });
        }
        let segments: Vec<Segment> = header
            .program_headers(endian, &*bytes)
            .map_err(ImageError::Elf)?
            .iter()
            .filter(|program| program.p_type(endian) == elf::PT_LOAD)
            .take(MAX_SEGMENTS)
            .filter_map(|program| {
                let (offset, size) = program.file_range(endian);
                let file_offset = usize::try_from(offset)
                    .ok()
                    .filter(|&offset| offset <= bytes.len())?;
                let left = bytes.len() - file_offset;
                Some(Segment {
                    file_offset,
                    file_size: usize::try_from(size).map_or(left, |size| size.min(left)),
                    memory_size: program.p_memsz(endian),
                    physical: Gpa(program.p_paddr(endian)),
                    virt: Gva(program.p_vaddr(endian)),
                })
            })
            .collect();
        if segments.is_empty() {
            return Err(ImageError::NoSegments);
        }
        let banner = find_banner(&bytes, &segments);
        let entry = header.e_entry(endian);
        Ok(Self {
            bytes,
            entry,
            segments,
            banner,
        })
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The address of the first instruction. A kernel has a physical address there, because the
    /// kernel's entry runs without paging or identity-mapped; in other guests the linker chooses
    /// the address.
    #[must_use]
    pub const fn entry(&self) -> u64 {
        self.entry
    }

    /// The loadable segments in file order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The version line, "Linux version …", without the end of line.
    #[must_use]
    pub fn banner(&self) -> Option<&str> {
        self.banner.as_deref()
    }

    /// The lowest link-time address in the kernel half, the address of `_text`; in a guest linked
    /// low, the lowest address of all.
    #[must_use]
    pub fn link_virtual_base(&self) -> Gva {
        self.base_segment().virt
    }

    /// The link-time physical address of [`link_virtual_base`](Self::link_virtual_base).
    #[must_use]
    pub fn link_physical_base(&self) -> Gpa {
        self.base_segment().physical
    }

    /// The physical addresses from the first segment to the last, bytes not in the file included.
    #[must_use]
    pub fn physical_range(&self) -> Range<Gpa> {
        let start = self
            .segments
            .iter()
            .map(|segment| segment.physical.0)
            .min()
            .unwrap_or(0);
        let ends = self
            .segments
            .iter()
            .map(|segment| segment.physical.0.saturating_add(segment.memory_size));
        Gpa(start)..Gpa(ends.max().unwrap_or(start))
    }

    /// The link-time virtual addresses from the first segment to the last in the kernel's own
    /// mapping, bytes not in the file included.
    #[must_use]
    pub fn virtual_range(&self) -> Range<Gva> {
        let base = self.base_segment();
        let bytes = self.physical_range().end.0.saturating_sub(base.physical.0);
        base.virt..Gva(base.virt.0.saturating_add(bytes))
    }

    /// The link-time physical address of the link-time virtual address `address`.
    #[must_use]
    pub fn to_physical(&self, address: Gva) -> Option<Gpa> {
        let (segment, offset) = self.segments.iter().find_map(|segment| {
            let offset = address.offset_from(segment.virt)?;
            (offset < segment.memory_size).then_some((segment, offset))
        })?;
        segment.physical.checked_add(offset)
    }

    /// The link-time virtual address of the link-time physical address `address` in the kernel's
    /// own mapping. The initial per-CPU data has such an address beside the offsets at which the
    /// data is linked.
    #[must_use]
    pub fn to_virtual(&self, address: Gpa) -> Option<Gva> {
        let held = self.segments.iter().any(|segment| {
            address
                .offset_from(segment.physical)
                .is_some_and(|offset| offset < segment.memory_size)
        });
        let base = self.base_segment();
        let offset = address.offset_from(base.physical)?;
        if held {
            base.virt.checked_add(offset)
        } else {
            None
        }
    }

    /// The file's `len` bytes at the link-time virtual address `address`; `None` where the file
    /// does not hold all of them.
    #[must_use]
    pub fn bytes_at(&self, address: Gva, len: usize) -> Option<&[u8]> {
        self.segments.iter().find_map(|segment| {
            let offset = usize::try_from(address.offset_from(segment.virt)?).ok()?;
            let end = offset
                .checked_add(len)
                .filter(|&end| end <= segment.file_size)?;
            self.bytes
                .get(segment.file_offset + offset..segment.file_offset + end)
        })
    }

    fn base_segment(&self) -> &Segment {
        let kernel = self
            .segments
            .iter()
            .filter(|segment| segment.virt.0 >= KERNEL_HALF);
        // `parse` refuses a file without segments.
        kernel
            .min_by_key(|segment| segment.virt)
            .unwrap_or(&self.segments[0])
    }
}

impl ImageSource for KernelImage {
    fn read_linked(&self, address: Gva, buf: &mut [u8]) -> Result<(), NotInImage> {
        let len = buf.len();
        let bytes = self
            .bytes_at(address, len)
            .ok_or(NotInImage { address, len })?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

fn find_banner(bytes: &[u8], segments: &[Segment]) -> Option<String> {
    segments.iter().find_map(|segment| {
        let held = bytes.get(segment.file_offset..segment.file_offset + segment.file_size)?;
        let text = &held[BANNER.find(held)?.start()..];
        let text = &text[..text.len().min(MAX_BANNER_BYTES)];
        let end = text
            .iter()
            .position(|byte| !byte.is_ascii_graphic() && *byte != b' ');
        Some(String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]).into_owned())
    })
}
