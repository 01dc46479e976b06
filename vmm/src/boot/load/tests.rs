use proptest::prelude::*;

use super::*;
use crate::boot::synthetic::{INIT_SIZE, PREF_ADDRESS, SETUP_BYTES, Segment, bzimage, elf};

const MIB: u64 = 1 << 20;

fn memory(mib: usize) -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), mib << 20)]).unwrap()
}

fn read(memory: &GuestMemoryMmap, gpa: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_slice(&mut bytes, GuestAddress(gpa)).unwrap();
    bytes
}

fn text_and_data(entry: u64) -> Vec<u8> {
    let text = Segment {
        paddr: MIB,
        vaddr: 0xffff_ffff_8000_0000,
        bytes: b"text",
        memsz: 4,
    };
    let data = Segment {
        paddr: 2 * MIB,
        vaddr: 0x1000,
        bytes: b"data",
        memsz: 0x3000,
    };
    elf(entry, &[text, data])
}

#[test]
fn segments_go_to_their_physical_addresses() {
    let memory = memory(4);
    let kernel = load_elf(&memory, &text_and_data(MIB + 2)).unwrap();
    assert_eq!(kernel.entry, GuestAddress(MIB + 2));
    assert_eq!(kernel.end, GuestAddress(2 * MIB + 0x3000));
    assert_eq!(kernel.ranges.len(), 2);
    assert_eq!(read(&memory, MIB, 4), b"text");
    assert_eq!(read(&memory, 2 * MIB, 4), b"data");
}

#[test]
fn a_virtual_entry_point_is_translated() {
    let kernel = load_elf(&memory(4), &text_and_data(0xffff_ffff_8000_0001)).unwrap();
    assert_eq!(kernel.entry, GuestAddress(MIB + 1));
}

#[test]
fn an_entry_point_outside_is_refused() {
    let error = load_elf(&memory(4), &text_and_data(0x10)).unwrap_err();
    assert!(matches!(error, LoadError::Entry { entry: 0x10 }), "{error}");
}

#[test]
fn too_small_memory_is_refused_with_the_needed_size() {
    let memory = memory(2);
    let error = load_elf(&memory, &text_and_data(MIB)).unwrap_err();
    assert!(error.to_string().contains("at least 3 MiB"), "{error}");
    // A failed load writes nothing.
    assert_eq!(read(&memory, MIB, 4), [0; 4]);
}

#[test]
fn segments_outside_of_kernel_memory_are_refused() {
    for paddr in [0, MIB - 1, MMIO_GAP_START_GPA.0, u64::MAX - 1] {
        let segment = Segment {
            paddr,
            vaddr: 0,
            bytes: b"text",
            memsz: 4,
        };
        let error = load_elf(&memory(4), &elf(paddr, &[segment])).unwrap_err();
        assert!(
            matches!(error, LoadError::Misplaced { .. }),
            "{paddr:x}: {error}"
        );
    }
}

#[test]
fn damaged_elf_files_are_refused() {
    let file = text_and_data(MIB);
    let truncated = load_elf(&memory(4), &file[..file.len() - 1]).unwrap_err();
    assert!(
        matches!(truncated, LoadError::Truncated { bytes: 4, .. }),
        "{truncated}"
    );
    let headless = load_elf(&memory(4), &file[..100]).unwrap_err();
    assert!(matches!(headless, LoadError::Elf(_)), "{headless}");
    let mut arm = file;
    arm[18] = 183;
    let arm = load_elf(&memory(4), &arm).unwrap_err();
    assert!(
        matches!(arm, LoadError::WrongMachine { machine: 183 }),
        "{arm}"
    );
    let empty = load_elf(&memory(4), &elf(MIB, &[])).unwrap_err();
    assert!(matches!(empty, LoadError::NoSegments), "{empty}");
}

#[test]
fn a_bzimage_is_loaded_whole() {
    let memory = memory(8);
    let image = bzimage(b"payload");
    let kernel = load_bzimage(&memory, &image).unwrap();
    assert_eq!(kernel.entry, GuestAddress(PREF_ADDRESS + 0x200));
    assert_eq!(
        kernel.end,
        GuestAddress(PREF_ADDRESS + u64::from(INIT_SIZE))
    );
    let loaded = read(&memory, PREF_ADDRESS, image.len() - SETUP_BYTES);
    assert!(loaded == image[SETUP_BYTES..]);
}

#[test]
fn a_bzimage_needs_its_whole_init_size() {
    let error = load_bzimage(&memory(4), &bzimage(b"payload")).unwrap_err();
    assert!(error.to_string().contains("at least 5 MiB"), "{error}");
}

#[test]
fn a_bzimage_without_64_bit_entry_is_refused() {
    let mut image = bzimage(b"payload");
    image[0x236] = 0;
    let error = load_bzimage(&memory(8), &image).unwrap_err();
    assert!(matches!(error, LoadError::No64BitEntry), "{error}");
}

proptest! {
    #[test]
    fn any_elf_is_survived(
        damage in prop::collection::vec((4_usize..176, any::<u8>()), 0..12),
        length in 0_usize..200,
    ) {
        let mut file = text_and_data(MIB);
        for (at, value) in damage {
            file[at] = value;
        }
        file.truncate(length);
        let _ = load_elf(&memory(4), &file);
    }

    #[test]
    fn any_bzimage_is_survived(
        damage in prop::collection::vec((0x1f1_usize..0x270, any::<u8>()), 0..12),
    ) {
        let mut image = bzimage(b"payload");
        for (at, value) in damage {
            image[at] = value;
        }
        let _ = load_bzimage(&memory(8), &image);
    }
}
