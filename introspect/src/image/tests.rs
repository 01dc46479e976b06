use address::{Gpa, Gva};
use proptest::prelude::*;

use super::{
    GuestImage, ImageError, ImageSource, KernelImage, KernelLayout, NotInImage, Segment,
    synthetic::elf,
};
use crate::{FlatMemory, SymbolTableBuilder};

const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
const BANNER: &str = "Linux version 9.9.9-test (somebody@example) #1 SMP";

const fn segment(virt: u64, physical: u64, memory_size: u64) -> Segment {
    let (virt, physical) = (Gva(virt), Gpa(physical));
    Segment {
        file_offset: 0,
        file_size: 0,
        memory_size,
        physical,
        virt,
    }
}

/// Per-CPU data linked at 0, as in kernels up to 6.14, then text with the banner.
fn kernel() -> Vec<u8> {
    let mut text = vec![0x90; 0x100];
    text.extend(BANNER.bytes());
    text.push(b'\n');
    let segments = [
        (segment(0, 0x120_0000, 0x1000), &[7; 0x20][..]),
        (segment(TEXT.0, 0x100_0000, 0x3000), &text[..]),
    ];
    elf(0x100_0000, &segments)
}

#[test]
fn image_has_link_addresses_and_banner() {
    let image = KernelImage::parse(kernel()).expect("an ELF file");
    assert_eq!(image.entry(), 0x100_0000);
    assert_eq!(image.banner(), Some(BANNER));
    assert_eq!(image.segments().len(), 2);
    assert_eq!(image.link_virtual_base(), TEXT);
    assert_eq!(image.link_physical_base(), Gpa(0x100_0000));
    assert_eq!(image.physical_range(), Gpa(0x100_0000)..Gpa(0x120_1000));
}

#[test]
fn addresses_convert_both_ways() {
    let image = KernelImage::parse(kernel()).expect("an ELF file");
    assert_eq!(
        image.to_physical(TEXT.wrapping_add(0x2fff)),
        Some(Gpa(0x100_2fff))
    );
    assert_eq!(image.to_physical(TEXT.wrapping_add(0x3000)), None);
    assert_eq!(image.to_physical(Gva(0x10)), Some(Gpa(0x120_0010)));
    assert_eq!(
        image.to_virtual(Gpa(0x100_2fff)),
        Some(TEXT.wrapping_add(0x2fff))
    );
    assert_eq!(
        image.to_virtual(Gpa(0x120_0010)),
        Some(TEXT.wrapping_add(0x20_0010))
    );
    assert_eq!(image.to_virtual(Gpa(0x110_0000)), None);
}

#[test]
fn bytes_are_found_where_the_file_has_them() {
    let image = KernelImage::parse(kernel()).expect("an ELF file");
    assert_eq!(
        image.bytes_at(TEXT.wrapping_add(0x100), 5),
        Some(&b"Linux"[..])
    );
    assert_eq!(image.bytes_at(Gva(0x1e), 2), Some(&[7, 7][..]));
    assert_eq!(image.bytes_at(Gva(0x1f), 2), None);
    assert_eq!(
        image.bytes_at(TEXT.wrapping_add(0x2000), 1),
        None,
        "zero, but not in the file"
    );
    let missing = NotInImage {
        address: Gva(u64::MAX),
        len: 4,
    };
    assert_eq!(image.read_linked(Gva(u64::MAX), &mut [0; 4]), Err(missing));
}

#[test]
fn other_files_are_refused() {
    assert!(matches!(
        KernelImage::parse(*b"MZ not an ELF file"),
        Err(ImageError::Elf(_))
    ));
    assert!(matches!(
        KernelImage::parse(elf(0, &[])),
        Err(ImageError::NoSegments)
    ));
    let mut arm = kernel();
    arm[18] = 183;
    assert!(matches!(
        KernelImage::parse(arm),
        Err(ImageError::Machine { machine: 183 })
    ));
}

#[test]
fn a_kernel_in_memory_is_read_at_link_time_addresses() {
    let memory = FlatMemory::new(Gpa(0x300_0000), b"kernel".to_vec());
    let guest = GuestImage::new(memory, TEXT, Gpa(0x300_0000), 0x1240_0000);
    let mut bytes = [0; 3];
    guest
        .read_linked(TEXT.wrapping_add(3), &mut bytes)
        .expect("there");
    assert_eq!(&bytes, b"nel");
    assert_eq!(guest.slide(), 0x1240_0000);
    assert!(guest.read_linked(TEXT.wrapping_add(4), &mut bytes).is_err());
    assert!(guest.read_linked(Gva(TEXT.0 - 1), &mut bytes).is_err());
}

#[test]
fn the_layout_comes_from_the_linker_labels() {
    let mut builder = SymbolTableBuilder::new();
    builder.push(TEXT, 'T', "_text");
    assert_eq!(KernelLayout::from_symbols(&builder.clone().build()), None);
    builder.push(TEXT.wrapping_add(0x1000), 'T', "_etext");
    let plain = KernelLayout::from_symbols(&builder.clone().build()).expect("text");
    assert_eq!(plain.init, None);
    builder.push(TEXT.wrapping_add(0x4000), 'D', "__init_begin");
    builder.push(TEXT.wrapping_add(0x5000), 'D', "__init_end");
    let layout = KernelLayout::from_symbols(&builder.build()).expect("text");
    assert_eq!(layout.text, TEXT..TEXT.wrapping_add(0x1000));
    assert!(layout.holds_code(TEXT) && !layout.is_init(TEXT));
    assert!(!layout.holds_code(TEXT.wrapping_add(0x1000)));
    assert!(
        layout.holds_code(TEXT.wrapping_add(0x4fff)) && layout.is_init(TEXT.wrapping_add(0x4fff))
    );
}

proptest! {
    #[test]
    fn damaged_files_break_nothing(
        damage in proptest::collection::vec((0_usize..200, any::<u8>()), 1..10),
        cut in 0_usize..600,
        address in any::<u64>(),
    ) {
        let mut file = kernel();
        for (at, value) in damage {
            file[at] = value;
        }
        file.truncate(cut);
        if let Ok(image) = KernelImage::parse(file) {
            let _ = image.bytes_at(Gva(address), 16);
            let _ = image.to_physical(Gva(address)).map(|gpa| image.to_virtual(gpa));
            let _ = image.physical_range();
            let _ = (image.link_virtual_base(), image.banner());
        }
    }
}
