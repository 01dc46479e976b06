//! The zero page with the memory map, the command line, and the initrd.

use std::mem::{offset_of, size_of};

use address::PAGE_BYTES;
use linux_loader::bootparam::{E820_MAX_ENTRIES_ZEROPAGE, boot_e820_entry, boot_params};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use super::header::HEADER_OFFSET;
use super::layout::{
    ACPI_GPA, ACPI_MAX_BYTES, CMDLINE_GPA, CMDLINE_MAX_BYTES, EBDA_END_GPA, HIGH_RAM_GPA,
    LOW_RAM_END_GPA, ZERO_PAGE_GPA, low_ram_end, ram_regions,
};
use super::load::{LoadedKernel, RamRange};

const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;

/// Why the kernel's parameters could not be written.
#[derive(Debug, Error)]
pub enum ParamsError {
    /// The command line is longer than the kernel or the layout allows.
    #[error("the kernel command line has {bytes} bytes, this kernel takes {max}")]
    CmdlineTooLong {
        /// Length of the command line.
        bytes: usize,
        /// Longest possible command line.
        max: usize,
    },
    /// The command line would end early.
    #[error("the kernel command line has a NUL at byte {at}")]
    CmdlineNul {
        /// Offset of the NUL.
        at: usize,
    },
    /// The initrd is empty. The kernel would treat an empty initrd as no initrd.
    #[error("the initrd is empty")]
    InitrdEmpty,
    /// The initrd does not fit between the kernel and the end of RAM.
    #[error(
        "the initrd has 0x{bytes:x} bytes, between the kernel's end at 0x{kernel_end:x} and \
         0x{limit:x} there is no room for it; give the guest at least {} MiB",
        needed_mib(*kernel_end, *bytes)
    )]
    NoRoomForInitrd {
        /// Size of the initrd.
        bytes: u64,
        /// End of the kernel.
        kernel_end: u64,
        /// End of the memory that an initrd may lie in.
        limit: u64,
    },
    /// The guest has no RAM at the parameters' address.
    #[error("cannot write to guest-physical 0x{gpa:x}; give the guest more memory")]
    Write {
        /// The address.
        gpa: u64,
        /// The cause.
        source: GuestMemoryError,
    },
}

/// The parameters of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct BootParams<'a> {
    /// The kernel, as loaded.
    pub kernel: &'a LoadedKernel,
    /// The kernel's command line, without a NUL.
    pub cmdline: &'a str,
    /// The initrd or initramfs archive.
    pub initrd: Option<&'a [u8]>,
    /// The ACPI root pointer.
    pub rsdp: GuestAddress,
    /// The size of the guest's RAM, as given to [`ram_regions`].
    pub ram_bytes: u64,
}

/// Where the parameters were put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedParams {
    /// The zero page, for RSI.
    pub zero_page: GuestAddress,
    /// The initrd.
    pub initrd: Option<RamRange>,
}

/// Writes command line, initrd and zero page.
///
/// # Errors
///
/// When the command line is unusable, the initrd does not fit, or the guest has too little RAM.
pub fn write_boot_params(
    memory: &GuestMemoryMmap,
    params: &BootParams<'_>,
) -> Result<PlacedParams, ParamsError> {
    let mut cmdline = checked_cmdline(params)?.to_vec();
    cmdline.push(0);
    write(memory, &cmdline, CMDLINE_GPA)?;

    let initrd = match params.initrd {
        Some(bytes) => {
            let range = place_initrd(params, bytes.len())?;
            write(memory, bytes, range.start)?;
            Some(range)
        }
        None => None,
    };
    write(memory, &zero_page(params, initrd), ZERO_PAGE_GPA)?;
    Ok(PlacedParams {
        zero_page: ZERO_PAGE_GPA,
        initrd,
    })
}

fn checked_cmdline<'a>(params: &BootParams<'a>) -> Result<&'a [u8], ParamsError> {
    let cmdline = params.cmdline.as_bytes();
    let kernel_max = usize::try_from(params.kernel.header.cmdline_bytes()).unwrap_or(usize::MAX);
    let max = kernel_max.min(CMDLINE_MAX_BYTES - 1);
    if cmdline.len() > max {
        return Err(ParamsError::CmdlineTooLong {
            bytes: cmdline.len(),
            max,
        });
    }
    match cmdline.iter().position(|&byte| byte == 0) {
        Some(at) => Err(ParamsError::CmdlineNul { at }),
        None => Ok(cmdline),
    }
}

/// The highest page-aligned range for the initrd: the kernel first allocates the memory below.
fn place_initrd(params: &BootParams<'_>, len: usize) -> Result<RamRange, ParamsError> {
    let bytes = u64::try_from(len).unwrap_or(u64::MAX);
    if bytes == 0 {
        return Err(ParamsError::InitrdEmpty);
    }
    let limit = low_ram_end(params.ram_bytes)
        .0
        .min(u64::from(params.kernel.header.initrd_addr_max()) + 1);
    let kernel_end = params.kernel.end.0;
    limit
        .checked_sub(bytes)
        .map(|start| start & !(PAGE_BYTES - 1))
        .filter(|&start| start >= kernel_end)
        .map(|start| RamRange {
            start: GuestAddress(start),
            bytes,
        })
        .ok_or(ParamsError::NoRoomForInitrd {
            bytes,
            kernel_end,
            limit,
        })
}

fn needed_mib(kernel_end: u64, initrd_bytes: u64) -> u64 {
    kernel_end
        .saturating_add(initrd_bytes)
        .saturating_add(PAGE_BYTES)
        .div_ceil(1 << 20)
}

fn zero_page(params: &BootParams<'_>, initrd: Option<RamRange>) -> Vec<u8> {
    let mut header = params.kernel.header.clone();
    let (start, bytes) = initrd.map_or((0, 0), |range| (range.start.0, range.bytes));
    // All values are below 4 GiB: the command line by the layout, the initrd by its limit.
    header.set_loader_fields(low_half(CMDLINE_GPA.0), low_half(start), low_half(bytes));

    let mut page = vec![0; size_of::<boot_params>()];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(HEADER_OFFSET, header.as_bytes());
    put(
        offset_of!(boot_params, acpi_rsdp_addr),
        &params.rsdp.0.to_le_bytes(),
    );
    let map = e820_map(params.ram_bytes);
    let entries = map.len().min(E820_MAX_ENTRIES_ZEROPAGE);
    put(
        offset_of!(boot_params, e820_entries),
        &[u8::try_from(entries).unwrap_or(u8::MAX)],
    );
    for (index, (range, kind)) in map.iter().take(entries).enumerate() {
        let at = offset_of!(boot_params, e820_table) + index * size_of::<boot_e820_entry>();
        put(
            at + offset_of!(boot_e820_entry, addr),
            &range.start.0.to_le_bytes(),
        );
        put(
            at + offset_of!(boot_e820_entry, size),
            &range.bytes.to_le_bytes(),
        );
        put(
            at + offset_of!(boot_e820_entry, r#type),
            &kind.to_le_bytes(),
        );
    }
    page
}

fn low_half(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default()
}

/// The memory map that firmware would report: usable RAM, and reserved ranges.
fn e820_map(ram_bytes: u64) -> Vec<(RamRange, u32)> {
    let acpi_end = GuestAddress(ACPI_GPA.0 + u64::try_from(ACPI_MAX_BYTES).unwrap_or_default());
    let mut map = vec![
        (between(GuestAddress(0), LOW_RAM_END_GPA), E820_RAM),
        (between(LOW_RAM_END_GPA, EBDA_END_GPA), E820_RESERVED),
        (between(ACPI_GPA, acpi_end), E820_RESERVED),
    ];
    for (start, bytes) in ram_regions(ram_bytes) {
        let end = GuestAddress(start.0 + u64::try_from(bytes).unwrap_or_default());
        map.push((between(start.max(HIGH_RAM_GPA), end), E820_RAM));
    }
    map.retain(|(range, _)| range.bytes > 0);
    map
}

fn between(start: GuestAddress, end: GuestAddress) -> RamRange {
    RamRange {
        start,
        bytes: end.0.saturating_sub(start.0),
    }
}

fn write(memory: &GuestMemoryMmap, bytes: &[u8], gpa: GuestAddress) -> Result<(), ParamsError> {
    memory
        .write_slice(bytes, gpa)
        .map_err(|source| ParamsError::Write { gpa: gpa.0, source })
}

#[cfg(test)]
mod tests;
