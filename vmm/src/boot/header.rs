//! The setup header of a bzImage, read from a file with arbitrary content.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use linux_loader::bootparam::{boot_params, setup_header};
use thiserror::Error;

/// Where the setup header starts, in a bzImage as in the zero page.
pub(super) const HEADER_OFFSET: usize = offset_of!(boot_params, hdr);

const HEADER_BYTES: usize = size_of::<setup_header>();
const BOOT_FLAG: u16 = 0xaa55;
const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"HdrS");
/// The header's length is the target of the short jump in front of it, counted from here.
const JUMP_BASE: usize = offset_of!(boot_params, hdr.header);
const SECTOR_BYTES: usize = 512;
/// Number of setup sectors if `setup_sects` is zero.
const DEFAULT_SETUP_SECTS: u8 = 4;
/// The first protocol version with `payload_offset` and `payload_length` (Linux 2.6.26).
const MIN_PROTOCOL_VERSION: u16 = 0x0208;
/// The first version with `xloadflags`, and so with the 64-bit entry point (Linux 3.8).
const XLOADFLAGS_VERSION: u16 = 0x020c;
const XLF_KERNEL_64: u16 = 1;
/// "A loader without an assigned number".
const LOADER_UNDEFINED: u8 = 0xff;
const LOADED_HIGH: u8 = 1;

/// Default of `initrd_addr_max`, as the boot protocol defines for kernels without the field.
const DEFAULT_INITRD_ADDR_MAX: u32 = 0x37ff_ffff;
/// Longest command line of every x86 kernel since 2.6.
const DEFAULT_CMDLINE_BYTES: u32 = 2047;
/// Alignment that stock kernels ask for.
const DEFAULT_ALIGNMENT: u32 = 0x20_0000;

/// Why a file's setup header cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum HeaderError {
    /// The magic numbers of a bzImage are missing.
    #[error("it has no bzImage setup header (\"HdrS\" at offset 0x202)")]
    Missing,
    /// The file ends within the setup code or the payload.
    #[error("it is truncated: it has 0x{have:x} bytes, at least 0x{needed:x} belong to it")]
    Truncated {
        /// Where the setup code or the payload ends.
        needed: u64,
        /// Bytes in the file.
        have: u64,
    },
    /// The header names no payload.
    #[error("its setup header names no payload")]
    NoPayload,
    /// The kernel is too old for the VMM to boot.
    #[error("its boot protocol version 0x{version:x} is too old, 0x0208 or later is needed")]
    TooOld {
        /// The version found.
        version: u16,
    },
}

/// A copy of the setup header's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupHeader {
    raw: [u8; HEADER_BYTES],
}

/// The offset of a field of `struct setup_header` within [`SetupHeader::raw`].
macro_rules! at {
    ($field:ident) => {
        offset_of!(setup_header, $field)
    };
}

impl SetupHeader {
    /// Reads the setup header of a bzImage.
    ///
    /// # Errors
    ///
    /// When `image` is not a bzImage, ends too early, or is older than protocol 2.08.
    pub fn parse(image: &[u8]) -> Result<Self, HeaderError> {
        let mut header = Self {
            raw: [0; HEADER_BYTES],
        };
        let minimum = JUMP_BASE + size_of::<u32>() + size_of::<u16>();
        let start = image
            .get(HEADER_OFFSET..minimum)
            .ok_or(HeaderError::Missing)?;
        header.raw[..start.len()].copy_from_slice(start);
        if header.u16(at!(boot_flag)) != BOOT_FLAG || header.u32(at!(header)) != HEADER_MAGIC {
            return Err(HeaderError::Missing);
        }
        let version = header.version();
        if version < MIN_PROTOCOL_VERSION {
            return Err(HeaderError::TooOld { version });
        }
        // The bytes behind the header are code, not fields of a later version.
        let jump = image.get(JUMP_BASE - 1).copied().unwrap_or_default();
        let end = (JUMP_BASE + usize::from(jump))
            .min(HEADER_OFFSET + HEADER_BYTES)
            .max(minimum);
        let needed = header.setup_bytes().max(end);
        let bytes = image
            .get(HEADER_OFFSET..end)
            .filter(|_| image.len() >= needed)
            .ok_or(HeaderError::Truncated {
                needed: wide(needed),
                have: wide(image.len()),
            })?;
        header.raw[..bytes.len()].copy_from_slice(bytes);
        Ok(header)
    }

    /// The header for a kernel in a bare ELF file, with the values of every x86-64 kernel of the
    /// last ten years.
    #[must_use]
    pub fn for_elf() -> Self {
        let mut header = Self {
            raw: [0; HEADER_BYTES],
        };
        header.set(at!(boot_flag), &BOOT_FLAG.to_le_bytes());
        header.set(at!(header), &HEADER_MAGIC.to_le_bytes());
        header.set(at!(version), &XLOADFLAGS_VERSION.to_le_bytes());
        header.set(at!(loadflags), &[LOADED_HIGH]);
        header.set(at!(kernel_alignment), &DEFAULT_ALIGNMENT.to_le_bytes());
        header.set(at!(initrd_addr_max), &DEFAULT_INITRD_ADDR_MAX.to_le_bytes());
        header.set(at!(cmdline_size), &DEFAULT_CMDLINE_BYTES.to_le_bytes());
        header.set(at!(xloadflags), &XLF_KERNEL_64.to_le_bytes());
        header
    }

    /// Boot protocol version, major in the high byte.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.u16(at!(version))
    }

    /// Bytes of real-mode code in front of the protected-mode kernel, boot sector included.
    #[must_use]
    pub fn setup_bytes(&self) -> usize {
        let sectors = match self.raw[at!(setup_sects)] {
            0 => DEFAULT_SETUP_SECTS,
            n => n,
        };
        (usize::from(sectors) + 1) * SECTOR_BYTES
    }

    /// The range of the compressed kernel in `image`, the file of the header.
    ///
    /// # Errors
    ///
    /// When the header names no payload, or `image` ends before the payload does.
    pub fn payload_range(&self, image: &[u8]) -> Result<Range<usize>, HeaderError> {
        let bytes = self.u32(at!(payload_length));
        if bytes == 0 {
            return Err(HeaderError::NoPayload);
        }
        let start = wide(self.setup_bytes()) + u64::from(self.u32(at!(payload_offset)));
        let needed = start + u64::from(bytes);
        let have = wide(image.len());
        match (usize::try_from(start), usize::try_from(needed)) {
            (Ok(start), Ok(end)) if needed <= have => Ok(start..end),
            _ => Err(HeaderError::Truncated { needed, have }),
        }
    }

    /// The kernel's preferred load address; zero if the header names no address.
    #[must_use]
    pub fn pref_address(&self) -> u64 {
        u64::from_le_bytes(self.get(at!(pref_address)))
    }

    /// Bytes that the kernel needs from the load address on, until the kernel can read the memory map.
    #[must_use]
    pub fn init_size(&self) -> u32 {
        self.u32(at!(init_size))
    }

    /// Whether the kernel may be entered in 64-bit mode, at 0x200 into the protected-mode kernel.
    #[must_use]
    pub fn has_64bit_entry(&self) -> bool {
        self.version() >= XLOADFLAGS_VERSION && self.u16(at!(xloadflags)) & XLF_KERNEL_64 != 0
    }

    /// The highest address that a byte of the initrd may have.
    #[must_use]
    pub fn initrd_addr_max(&self) -> u32 {
        match self.u32(at!(initrd_addr_max)) {
            0 => DEFAULT_INITRD_ADDR_MAX,
            max => max,
        }
    }

    /// The longest command line the kernel reads, without the NUL.
    #[must_use]
    pub fn cmdline_bytes(&self) -> u32 {
        match self.u32(at!(cmdline_size)) {
            0 => DEFAULT_CMDLINE_BYTES,
            max => max,
        }
    }

    /// Fills in the boot loader's fields.
    pub(super) fn set_loader_fields(&mut self, cmdline_gpa: u32, initrd_gpa: u32, initrd: u32) {
        self.set(at!(type_of_loader), &[LOADER_UNDEFINED]);
        self.raw[at!(loadflags)] |= LOADED_HIGH;
        self.set(at!(cmd_line_ptr), &cmdline_gpa.to_le_bytes());
        self.set(at!(ramdisk_image), &initrd_gpa.to_le_bytes());
        self.set(at!(ramdisk_size), &initrd.to_le_bytes());
    }

    /// The header's bytes, as in the file and in the zero page.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.raw[at..at + N]);
        bytes
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.get(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.get(at))
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.raw[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Converts a length to the width of a file offset.
fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
