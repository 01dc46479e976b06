use proptest::prelude::*;

use super::*;
use crate::boot::synthetic::{INIT_SIZE, PAYLOAD_OFFSET, PREF_ADDRESS, SETUP_BYTES, bzimage};

#[test]
fn fields_are_where_the_boot_protocol_puts_them() {
    assert_eq!(HEADER_OFFSET, 0x1f1);
    let image = bzimage(b"12345678");
    let header = SetupHeader::parse(&image).unwrap();
    assert_eq!(header.version(), 0x020f);
    assert_eq!(header.setup_bytes(), SETUP_BYTES);
    assert_eq!(header.pref_address(), PREF_ADDRESS);
    assert_eq!(header.init_size(), INIT_SIZE);
    assert_eq!(header.initrd_addr_max(), 0x7fff_ffff);
    assert!(header.has_64bit_entry());
    let start = SETUP_BYTES + usize::try_from(PAYLOAD_OFFSET).unwrap();
    assert_eq!(header.payload_range(&image), Ok(start..start + 8));
}

#[test]
fn no_setup_sectors_stand_for_four() {
    let mut image = bzimage(b"payload");
    image.resize(0x4000, 0);
    image[0x1f1] = 0;
    assert_eq!(SetupHeader::parse(&image).unwrap().setup_bytes(), 5 * 512);
}

#[test]
fn bytes_behind_the_header_are_not_fields() {
    let mut image = bzimage(b"payload");
    // A header that ends with initrd_addr_max: the bytes behind are code.
    image[0x201] = 0x2e;
    let header = SetupHeader::parse(&image).unwrap();
    assert_eq!(header.initrd_addr_max(), 0x7fff_ffff);
    assert_eq!(header.init_size(), 0);
    assert_eq!(header.payload_range(&image), Err(HeaderError::NoPayload));
}

#[test]
fn missing_and_broken_bzimage_headers_are_distinct_errors() {
    let image = bzimage(b"payload");
    assert_eq!(SetupHeader::parse(&[]), Err(HeaderError::Missing));
    assert_eq!(SetupHeader::parse(&[0; 0x1000]), Err(HeaderError::Missing));
    assert_eq!(
        SetupHeader::parse(&image[..0x400]),
        Err(HeaderError::Truncated {
            needed: 0x600,
            have: 0x400
        })
    );
    let mut old = image.clone();
    old[0x206..0x208].copy_from_slice(&[0x04, 0x02]);
    assert_eq!(
        SetupHeader::parse(&old),
        Err(HeaderError::TooOld { version: 0x0204 })
    );
}

#[test]
fn a_payload_beyond_the_end_is_truncated() {
    let image = bzimage(&[0; 100]);
    let cut = &image[..image.len() - 1];
    let have = u64::try_from(cut.len()).unwrap();
    assert_eq!(
        SetupHeader::parse(cut).unwrap().payload_range(cut),
        Err(HeaderError::Truncated {
            needed: have + 1,
            have
        })
    );
}

#[test]
fn an_elf_gets_a_header_of_its_own() {
    let header = SetupHeader::for_elf();
    assert!(header.has_64bit_entry());
    assert_eq!(header.initrd_addr_max(), 0x37ff_ffff);
    assert_eq!(header.cmdline_bytes(), 2047);
}

proptest! {
    #[test]
    fn any_bytes_can_be_parsed(bytes in prop::collection::vec(any::<u8>(), 0..0x2000)) {
        let _ = SetupHeader::parse(&bytes);
    }

    #[test]
    fn any_damage_to_a_header_is_survived(
        damage in prop::collection::vec((0x1f1_usize..0x270, any::<u8>()), 0..12),
        length in 0_usize..0x1000,
    ) {
        let mut image = bzimage(&[0; 0x300]);
        for (at, value) in damage {
            image[at] = value;
        }
        image.truncate(length);
        if let Ok(header) = SetupHeader::parse(&image)
            && let Ok(range) = header.payload_range(&image)
        {
            prop_assert!(range.end <= image.len());
        }
    }
}
