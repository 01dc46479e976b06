use super::*;

fn memory() -> GuestMemoryMmap {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
    write_boot_tables(&memory).unwrap();
    memory
}

fn u64_at(memory: &GuestMemoryMmap, gpa: u64) -> u64 {
    memory.read_obj(GuestAddress(gpa)).unwrap()
}

#[test]
fn descriptors_are_flat_and_64_bit() {
    let memory = memory();
    assert_eq!(u64_at(&memory, BOOT_GDT_GPA.0), 0);
    assert_eq!(
        u64_at(&memory, BOOT_GDT_GPA.0 + 0x10),
        0x00af_9b00_0000_ffff
    );
    assert_eq!(
        u64_at(&memory, BOOT_GDT_GPA.0 + 0x18),
        0x00cf_9300_0000_ffff
    );
    assert_eq!(
        u64_at(&memory, BOOT_GDT_GPA.0 + 0x20),
        0x0000_8b00_0000_0067
    );
}

#[test]
fn every_address_below_4_gib_is_mapped_to_itself() {
    let memory = memory();
    for address in [
        0,
        0x7000,
        0x100_0000,
        0x3fff_ffff,
        0x4000_0000,
        0xfec0_0000,
        0xffff_ffff,
    ] {
        let next = |table: u64, shift: u32| {
            let entry = u64_at(&memory, table + (address >> shift & 0x1ff) * 8);
            assert_eq!(
                entry & (PTE_PRESENT | PTE_WRITABLE),
                PTE_PRESENT | PTE_WRITABLE
            );
            entry
        };
        let pdpt = next(PML4_GPA.0, 39) & !0xfff;
        let directory = next(pdpt, 30) & !0xfff;
        let page = next(directory, 21);
        assert_ne!(page & PTE_LARGE, 0);
        assert_eq!(page & !0xfff, address & !(LARGE_PAGE_BYTES - 1));
    }
    assert_eq!(u64_at(&memory, PDPT_GPA.0 + 4 * 8), 0);
}

#[test]
fn registers_follow_the_boot_protocol() {
    let regs = boot_regs(GuestAddress(0x100_0200), GuestAddress(0x7000));
    assert_eq!((regs.rip, regs.rsi, regs.rflags), (0x100_0200, 0x7000, 2));
    assert_eq!(regs.rsp, BOOT_STACK_GPA.0);

    let mut sregs = kvm_sregs {
        apic_base: 0xfee0_0900,
        ..Default::default()
    };
    set_boot_sregs(&mut sregs);
    assert_eq!(
        (sregs.cs.selector, sregs.ds.selector, sregs.tr.selector),
        (0x10, 0x18, 0x20)
    );
    assert_eq!((sregs.cs.l, sregs.cs.db, sregs.cs.dpl), (1, 0, 0));
    assert_eq!(sregs.cr3, PML4_GPA.0);
    assert_eq!(sregs.efer, 0x500);
    assert_eq!(sregs.apic_base, 0xfee0_0900);
}

#[test]
fn too_little_memory_is_an_error() {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x9000)]).unwrap();
    let error = write_boot_tables(&memory).unwrap_err();
    assert!(error.to_string().contains("0x9000"), "{error}");
}
