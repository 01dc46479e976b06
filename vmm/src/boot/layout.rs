//! The layout of guest-physical memory.
//!
//! ```text
//! 0x0000_0500  boot GDT                      low memory: what the boot CPU needs before the
//! 0x0000_7000  zero page (boot_params)       kernel has built its own. Linux may use it as soon
//! 0x0000_8ff0  boot stack, growing down      as it no longer reads it, so it is listed as RAM.
//! 0x0000_9000  page tables: PML4, PDPT, 4 PDs
//! 0x0002_0000  command line
//! 0x0009_fc00  end of low RAM (EBDA, VGA hole)
//! 0x000e_0000  ACPI tables, RSDP first       reserved, inside the range old kernels scan
//! 0x0010_0000  RAM; a stock kernel is linked at 0x0100_0000
//! 0xc000_0000  MMIO gap (IOAPIC 0xfec0_0000, LAPIC 0xfee0_0000)
//! 0x1_0000_0000  the RAM that did not fit below the gap
//! ```

use vm_memory::GuestAddress;

/// The boot CPU's first GDT.
pub const BOOT_GDT_GPA: GuestAddress = GuestAddress(0x500);
/// An empty IDT: a fault before the kernel loads an IDT is a triple fault, as on hardware.
pub const BOOT_IDT_GPA: GuestAddress = GuestAddress(0x540);
/// The zero page, `struct boot_params`.
pub const ZERO_PAGE_GPA: GuestAddress = GuestAddress(0x7000);
/// Initial stack pointer of the boot CPU; the kernel switches away from it at once.
pub const BOOT_STACK_GPA: GuestAddress = GuestAddress(0x8ff0);
/// Page-map level 4 of the identity map.
pub const PML4_GPA: GuestAddress = GuestAddress(0x9000);
/// Page-directory-pointer table of the identity map.
pub const PDPT_GPA: GuestAddress = GuestAddress(0xa000);
/// First of the four page directories of the identity map, one per GiB.
pub const PAGE_DIRECTORIES_GPA: GuestAddress = GuestAddress(0xb000);
/// The kernel command line.
pub const CMDLINE_GPA: GuestAddress = GuestAddress(0x2_0000);
/// Room for the command line, including the terminating NUL.
pub const CMDLINE_MAX_BYTES: usize = 0x1_0000;
/// End of the RAM below the EBDA and the VGA hole.
pub const LOW_RAM_END_GPA: GuestAddress = GuestAddress(0x9_fc00);
/// End of the firmware's extended BIOS data area.
pub const EBDA_END_GPA: GuestAddress = GuestAddress(0xa_0000);
/// The ACPI tables, with the RSDP first: kernels that ignore `boot_params.acpi_rsdp_addr` find the
/// RSDP here by scanning.
pub const ACPI_GPA: GuestAddress = GuestAddress(0xe_0000);
/// Room for the ACPI tables.
pub const ACPI_MAX_BYTES: usize = 0x2_0000;
/// Start of the RAM for a kernel.
pub const HIGH_RAM_GPA: GuestAddress = GuestAddress(0x10_0000);
/// Start of the MMIO gap below 4 GiB: devices, no RAM.
pub const MMIO_GAP_START_GPA: GuestAddress = GuestAddress(0xc000_0000);
/// End of the MMIO gap.
pub const MMIO_GAP_END_GPA: GuestAddress = GuestAddress(0x1_0000_0000);
/// Registers of the IOAPIC.
pub const IOAPIC_GPA: GuestAddress = GuestAddress(0xfec0_0000);
/// Registers of the local APICs.
pub const LAPIC_GPA: GuestAddress = GuestAddress(0xfee0_0000);

/// The ranges of guest-physical memory that `ram_bytes` of RAM fill, in ascending order.
///
/// The first range starts at zero. RAM that does not fit below the MMIO gap continues at 4 GiB.
#[must_use]
pub fn ram_regions(ram_bytes: u64) -> Vec<(GuestAddress, usize)> {
    let low = ram_bytes.min(MMIO_GAP_START_GPA.0);
    [(GuestAddress(0), low), (MMIO_GAP_END_GPA, ram_bytes - low)]
        .into_iter()
        .filter(|&(_, bytes)| bytes > 0)
        .map(|(start, bytes)| (start, usize::try_from(bytes).unwrap_or(usize::MAX)))
        .collect()
}

/// End of the RAM below the MMIO gap.
#[must_use]
pub fn low_ram_end(ram_bytes: u64) -> GuestAddress {
    GuestAddress(ram_bytes.min(MMIO_GAP_START_GPA.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_memory_is_one_region() {
        assert_eq!(ram_regions(256 << 20), [(GuestAddress(0), 256 << 20)]);
        assert_eq!(ram_regions(3 << 30), [(GuestAddress(0), 3 << 30)]);
    }

    #[test]
    fn large_memory_leaves_the_gap_free() {
        assert_eq!(
            ram_regions(5 << 30),
            [(GuestAddress(0), 3 << 30), (GuestAddress(4 << 30), 2 << 30)]
        );
        assert_eq!(low_ram_end(5 << 30), GuestAddress(3 << 30));
    }

    #[test]
    fn no_memory_is_no_region() {
        assert!(ram_regions(0).is_empty());
    }
}
