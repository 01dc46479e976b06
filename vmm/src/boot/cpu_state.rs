//! The state in which the boot CPU enters the kernel: 64-bit mode, paging on, every address below
//! 4 GiB mapped to itself, flat segments, interrupts off.

use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment, kvm_sregs};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use super::layout::{
    BOOT_GDT_GPA, BOOT_IDT_GPA, BOOT_STACK_GPA, PAGE_DIRECTORIES_GPA, PDPT_GPA, PML4_GPA,
};

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
/// Bit 1 of RFLAGS is always set.
const RFLAGS_FIXED: u64 = 1 << 1;

const PTE_PRESENT: u64 = 1;
const PTE_WRITABLE: u64 = 1 << 1;
const PTE_LARGE: u64 = 1 << 7;
const TABLE_BYTES: u64 = 4096;
const ENTRIES_PER_TABLE: u64 = 512;
const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// One page directory for each GiB below 4 GiB.
const PAGE_DIRECTORIES: u64 = 4;

/// The boot protocol's `__BOOT_CS`.
const CODE_SELECTOR: u16 = 0x10;
/// The boot protocol's `__BOOT_DS`.
const DATA_SELECTOR: u16 = 0x18;
const TSS_SELECTOR: u16 = 0x20;
/// Accessed, readable, executable.
const TYPE_CODE: u8 = 0xb;
/// Accessed, writable.
const TYPE_DATA: u8 = 0x3;
/// VM entry wants a busy 64-bit TSS.
const TYPE_BUSY_TSS: u8 = 0xb;
const FLAT_LIMIT: u32 = u32::MAX;
const TSS_LIMIT: u32 = 0x67;

/// Why the boot CPU's tables could not be written.
#[derive(Debug, Error)]
#[error("cannot write the boot tables to guest-physical 0x{gpa:x}; give the guest more memory")]
pub struct CpuStateError {
    gpa: u64,
    source: GuestMemoryError,
}

/// Writes the GDT, an empty IDT entry and the identity page tables for [`set_boot_sregs`].
///
/// # Errors
///
/// When the guest has no RAM at the addresses of the tables.
pub fn write_boot_tables(memory: &GuestMemoryMmap) -> Result<(), CpuStateError> {
    // The TSS descriptor takes two entries in 64-bit mode.
    let gdt = [
        0,
        0,
        descriptor(&code_segment()),
        descriptor(&data_segment()),
        descriptor(&tss_segment()),
        0,
    ];
    write_table(memory, BOOT_GDT_GPA, gdt)?;
    write_table(memory, BOOT_IDT_GPA, [0; 2])?;

    let table = |gpa: u64| gpa | PTE_PRESENT | PTE_WRITABLE;
    write_table(memory, PML4_GPA, [table(PDPT_GPA.0)])?;
    let directories =
        (0..PAGE_DIRECTORIES).map(|n| table(PAGE_DIRECTORIES_GPA.0 + n * TABLE_BYTES));
    write_table(memory, PDPT_GPA, directories)?;
    let pages = (0..PAGE_DIRECTORIES * ENTRIES_PER_TABLE)
        .map(|n| (n * LARGE_PAGE_BYTES) | PTE_PRESENT | PTE_WRITABLE | PTE_LARGE);
    write_table(memory, PAGE_DIRECTORIES_GPA, pages)
}

/// The general registers with which the boot CPU enters the kernel.
#[must_use]
pub fn boot_regs(entry: GuestAddress, zero_page: GuestAddress) -> kvm_regs {
    kvm_regs {
        rip: entry.0,
        rsi: zero_page.0,
        rsp: BOOT_STACK_GPA.0,
        rflags: RFLAGS_FIXED,
        ..Default::default()
    }
}

/// Sets the system registers of a new boot CPU for the entry to the kernel. Registers outside the
/// boot protocol (the APIC base) stay unchanged.
pub fn set_boot_sregs(sregs: &mut kvm_sregs) {
    sregs.cs = code_segment();
    let data = data_segment();
    sregs.ds = data;
    sregs.es = data;
    sregs.fs = data;
    sregs.gs = data;
    sregs.ss = data;
    sregs.tr = tss_segment();
    sregs.gdt = kvm_dtable {
        base: BOOT_GDT_GPA.0,
        limit: 6 * 8 - 1,
        ..Default::default()
    };
    sregs.idt = kvm_dtable {
        base: BOOT_IDT_GPA.0,
        limit: 0,
        ..Default::default()
    };
    sregs.cr0 = CR0_PG | CR0_NE | CR0_ET | CR0_PE;
    sregs.cr3 = PML4_GPA.0;
    sregs.cr4 = CR4_PAE;
    sregs.efer = EFER_LME | EFER_LMA;
}

fn code_segment() -> kvm_segment {
    kvm_segment {
        selector: CODE_SELECTOR,
        type_: TYPE_CODE,
        l: 1,
        ..flat_segment()
    }
}

fn data_segment() -> kvm_segment {
    kvm_segment {
        selector: DATA_SELECTOR,
        type_: TYPE_DATA,
        db: 1,
        ..flat_segment()
    }
}

fn flat_segment() -> kvm_segment {
    kvm_segment {
        limit: FLAT_LIMIT,
        present: 1,
        s: 1,
        g: 1,
        ..Default::default()
    }
}

fn tss_segment() -> kvm_segment {
    kvm_segment {
        selector: TSS_SELECTOR,
        type_: TYPE_BUSY_TSS,
        limit: TSS_LIMIT,
        present: 1,
        ..Default::default()
    }
}

/// The GDT entry of a segment with base zero.
fn descriptor(segment: &kvm_segment) -> u64 {
    let limit = match segment.g {
        0 => segment.limit,
        _ => segment.limit >> 12,
    };
    let access = u64::from(segment.type_)
        | u64::from(segment.s) << 4
        | u64::from(segment.dpl) << 5
        | u64::from(segment.present) << 7;
    let flags = u64::from(segment.avl)
        | u64::from(segment.l) << 1
        | u64::from(segment.db) << 2
        | u64::from(segment.g) << 3;
    u64::from(limit & 0xffff) | access << 40 | u64::from((limit >> 16) & 0xf) << 48 | flags << 52
}

fn write_table(
    memory: &GuestMemoryMmap,
    gpa: GuestAddress,
    entries: impl IntoIterator<Item = u64>,
) -> Result<(), CpuStateError> {
    let bytes: Vec<u8> = entries.into_iter().flat_map(u64::to_le_bytes).collect();
    memory
        .write_slice(&bytes, gpa)
        .map_err(|source| CpuStateError { gpa: gpa.0, source })
}

#[cfg(test)]
mod tests;
