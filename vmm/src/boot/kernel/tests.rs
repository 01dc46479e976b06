use std::error::Error;

use vm_memory::GuestAddress;

use super::*;
use crate::boot::synthetic::{Segment, bzimage, elf};

fn tiny_elf() -> Vec<u8> {
    elf(
        0x10_0000,
        &[Segment {
            paddr: 0x10_0000,
            vaddr: 0,
            bytes: b"hlt",
            memsz: 3,
        }],
    )
}

fn packed_elf() -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&tiny_elf()).unwrap();
    bzimage(&encoder.finish().unwrap())
}

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 8 << 20)]).unwrap()
}

#[test]
fn both_formats_are_recognised() {
    let elf = KernelFile::from_bytes("vmlinux", tiny_elf()).unwrap();
    assert_eq!(elf.format(), KernelFormat::Elf);
    assert_eq!(elf.vmlinux().unwrap(), tiny_elf());
    let bzimage = KernelFile::from_bytes("vmlinuz", packed_elf()).unwrap();
    assert_eq!(bzimage.format(), KernelFormat::BzImage);
    assert_eq!(bzimage.vmlinux().unwrap(), tiny_elf());
}

#[test]
fn other_files_are_described() {
    let error = KernelFile::from_bytes("initrd.gz", b"\x1f\x8b\x08\0".to_vec()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "initrd.gz is not a kernel: it starts with 1f 8b 08 00; \
         expected an ELF vmlinux (7f 45 4c 46) or a bzImage (\"HdrS\" at offset 0x202)"
    );
    let error = KernelFile::from_bytes("empty", Vec::new()).unwrap_err();
    assert!(error.to_string().contains("it is empty"), "{error}");
}

#[test]
fn truncated_bzimage_is_reported_as_truncated() {
    let error = KernelFile::from_bytes("vmlinuz", packed_elf()[..0x300].to_vec()).unwrap_err();
    assert!(matches!(error, KernelError::Header { .. }), "{error}");
    assert!(error.source().unwrap().to_string().contains("truncated"));
}

#[test]
fn files_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vmlinux");
    std::fs::write(&path, tiny_elf()).unwrap();
    assert_eq!(KernelFile::open(&path).unwrap().bytes(), tiny_elf());
    let error = KernelFile::open(&directory.path().join("none")).unwrap_err();
    assert!(matches!(error, KernelError::Read { .. }), "{error}");
}

#[test]
fn a_direct_boot_keeps_the_bzimages_own_limits() {
    let kernel = KernelFile::from_bytes("vmlinuz", packed_elf()).unwrap();
    let vmlinux = kernel.vmlinux().unwrap();
    let loaded = kernel
        .load(&memory(), BootMethod::Direct, &vmlinux)
        .unwrap();
    assert_eq!(loaded.entry, GuestAddress(0x10_0000));
    assert_eq!(loaded.header.initrd_addr_max(), 0x7fff_ffff);
}

#[test]
fn an_elf_cannot_decompress_itself() {
    let kernel = KernelFile::from_bytes("vmlinux", tiny_elf()).unwrap();
    let error = kernel
        .load(&memory(), BootMethod::BzImage, &[])
        .unwrap_err();
    assert!(matches!(error, KernelError::NoBzImage { .. }), "{error}");
}
