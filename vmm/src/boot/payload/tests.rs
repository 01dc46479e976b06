use std::io::Write;

use lzma_rust2::{XzOptions, XzWriter};
use proptest::prelude::*;

use super::*;
use crate::boot::synthetic::{Packer, bzimage};

/// Bytes with an ELF magic at the start, repetitive enough to be compressed.
fn kernel() -> Vec<u8> {
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.extend((0..300_000_u32).flat_map(|n| (n / 7 * 31 % 1021).to_le_bytes()));
    elf
}

fn assert_unpacks(packer: Packer) {
    let image = bzimage(&packer.pack(&kernel()));
    assert!(extract_vmlinux(&image).unwrap() == kernel());
}

#[test]
fn unpacks_gzip() {
    assert_unpacks(Packer::Gzip);
}

#[test]
fn unpacks_bzip2() {
    assert_unpacks(Packer::Bzip2);
}

#[test]
fn unpacks_xz_with_branch_filter() {
    assert_unpacks(Packer::Xz);
}

#[test]
fn unpacks_lzma() {
    assert_unpacks(Packer::Lzma);
}

#[test]
fn unpacks_lz4() {
    assert_unpacks(Packer::Lz4);
}

#[test]
fn unpacks_zstd() {
    assert_unpacks(Packer::Zstd);
}

#[test]
fn an_xz_payload_that_asks_for_much_memory_is_refused() {
    let mut options = XzOptions::with_preset(1);
    options.lzma_options.dict_size = 1 << 30;
    let mut encoder = XzWriter::new(Vec::new(), options).unwrap();
    encoder.write_all(&kernel()).unwrap();
    let payload = encoder.finish().unwrap();
    let error = extract_vmlinux(&bzimage(&payload)).unwrap_err();
    let PayloadError::Corrupt { source, .. } = error else {
        panic!("{error}");
    };
    assert!(source.to_string().contains("memory"), "{source}");
}

#[test]
fn an_unknown_compression_is_named() {
    let error = extract_vmlinux(&bzimage(b"\x89LZO\0\r\n")).unwrap_err();
    assert!(matches!(error, PayloadError::UnknownCompression { .. }));
    let text = error.to_string();
    assert!(
        text.contains("0x840") && text.contains("89 4c 5a 4f 00 0d"),
        "{text}"
    );
}

#[test]
fn a_cut_payload_is_truncated() {
    let image = bzimage(&Packer::Gzip.pack(&kernel()));
    let error = extract_vmlinux(&image[..image.len() - 10]).unwrap_err();
    assert!(
        matches!(error, PayloadError::Header(HeaderError::Truncated { .. })),
        "{error}"
    );
}

#[test]
fn a_damaged_payload_is_corrupt() {
    let mut packed = Packer::Gzip.pack(&kernel());
    let middle = packed.len() / 2;
    packed[middle..middle + 16].fill(0xff);
    let error = extract_vmlinux(&bzimage(&packed)).unwrap_err();
    assert!(
        matches!(
            error,
            PayloadError::Corrupt {
                compression: "gzip",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_payload_that_is_no_kernel_is_refused() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"#!/bin/sh\n").unwrap();
    let error = extract_vmlinux(&bzimage(&encoder.finish().unwrap())).unwrap_err();
    assert!(matches!(error, PayloadError::NotElf { .. }), "{error}");
}

#[test]
fn output_is_bounded() {
    // 513 MiB of zeros pack into half a MiB.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let zeros = vec![0; 1 << 20];
    for _ in 0..=MAX_VMLINUX_BYTES >> 20 {
        encoder.write_all(&zeros).unwrap();
    }
    let error = extract_vmlinux(&bzimage(&encoder.finish().unwrap())).unwrap_err();
    assert!(matches!(error, PayloadError::TooLarge { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_payload_is_survived(
        format in 0..Compression::MAGICS.len(),
        rest in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        let mut payload = Compression::MAGICS[format].0.to_vec();
        payload.extend(rest);
        let _ = extract_vmlinux(&bzimage(&payload));
    }
}
