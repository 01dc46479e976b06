use vm_memory::Bytes;

use super::*;
use crate::boot::synthetic::{PREF_ADDRESS, Segment, bzimage, elf};
use crate::boot::{ACPI_GPA, CMDLINE_GPA, PML4_GPA, ZERO_PAGE_GPA, ram_regions};

const RAM_BYTES: u64 = 16 << 20;

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&ram_regions(RAM_BYTES)).unwrap()
}

fn request<'a>(kernel: &'a KernelFile, method: BootMethod) -> BootRequest<'a> {
    BootRequest {
        kernel,
        vmlinux: kernel.bytes(),
        method,
        initrd: Some(b"initrd"),
        cmdline: "quiet",
        vcpus: 2,
        ram_bytes: RAM_BYTES,
    }
}

#[test]
fn boot_data_is_at_its_addresses() {
    let segment = Segment {
        paddr: 0x20_0000,
        vaddr: 0,
        bytes: b"\xf4",
        memsz: 1,
    };
    let kernel = KernelFile::from_bytes("vmlinux", elf(0x20_0000, &[segment])).unwrap();
    let memory = memory();
    let boot = prepare(&memory, &request(&kernel, BootMethod::Direct)).unwrap();

    assert_eq!(boot.kernel.entry, GuestAddress(0x20_0000));
    assert_eq!(boot.zero_page, ZERO_PAGE_GPA);
    assert_eq!(
        boot.initrd.map(|initrd| initrd.start),
        Some(GuestAddress(RAM_BYTES - 0x1000))
    );
    let start = |gpa: GuestAddress| memory.read_obj::<[u8; 4]>(gpa).unwrap();
    assert_eq!(start(boot.kernel.entry), [0xf4, 0, 0, 0]);
    assert_eq!(start(ACPI_GPA), *b"RSD ");
    assert_eq!(start(CMDLINE_GPA), *b"quie");
    assert_eq!(start(GuestAddress(RAM_BYTES - 0x1000)), *b"init");
    assert_ne!(start(PML4_GPA), [0; 4]);
}

#[test]
fn a_bzimage_is_entered_where_it_decompresses_itself() {
    let kernel = KernelFile::from_bytes("vmlinuz", bzimage(b"payload")).unwrap();
    let boot = prepare(&memory(), &request(&kernel, BootMethod::BzImage)).unwrap();
    assert_eq!(boot.kernel.entry, GuestAddress(PREF_ADDRESS + 0x200));
}

#[test]
fn a_machine_without_memory_is_an_error() {
    let segment = Segment {
        paddr: 0x20_0000,
        vaddr: 0,
        bytes: b"\xf4",
        memsz: 1,
    };
    let kernel = KernelFile::from_bytes("vmlinux", elf(0x20_0000, &[segment])).unwrap();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
    let error = prepare(&memory, &request(&kernel, BootMethod::Direct)).unwrap_err();
    assert!(
        matches!(error, BootError::Kernel(KernelError::Load { .. })),
        "{error}"
    );
}
