use std::io::Write;

use lzma_rust2::{FilterType, LzmaOptions, LzmaWriter, XzOptions, XzWriter};
use proptest::prelude::*;

use super::*;
use crate::boot::synthetic::bzimage;

/// Something that an ELF magic starts and that repeats enough to be compressed.
fn kernel() -> Vec<u8> {
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.extend((0..300_000_u32).flat_map(|n| (n / 7 * 31 % 1021).to_le_bytes()));
    elf
}

/// What the kernel's build appends to every payload but a gzip one.
fn with_trailer(mut packed: Vec<u8>) -> Vec<u8> {
    packed.extend(u32::try_from(kernel().len()).unwrap().to_le_bytes());
    packed
}

fn assert_unpacks(payload: &[u8]) {
    assert!(extract_vmlinux(&bzimage(payload)).unwrap() == kernel());
}

fn gzip() -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&kernel()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn unpacks_gzip() {
    assert_unpacks(&gzip());
}

#[test]
fn unpacks_bzip2() {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(&kernel()).unwrap();
    assert_unpacks(&with_trailer(encoder.finish().unwrap()));
}

#[test]
fn unpacks_xz_with_branch_filter() {
    let mut options = XzOptions::with_preset(1);
    options.prepend_pre_filter(FilterType::BcjX86, 0);
    let mut encoder = XzWriter::new(Vec::new(), options).unwrap();
    encoder.write_all(&kernel()).unwrap();
    assert_unpacks(&with_trailer(encoder.finish().unwrap()));
}

#[test]
fn an_xz_payload_that_asks_for_much_memory_is_refused() {
    let mut options = XzOptions::with_preset(1);
    options.lzma_options.dict_size = 1 << 30;
    let mut encoder = XzWriter::new(Vec::new(), options).unwrap();
    encoder.write_all(&kernel()).unwrap();
    let payload = with_trailer(encoder.finish().unwrap());
    let error = extract_vmlinux(&bzimage(&payload)).unwrap_err();
    let PayloadError::Corrupt { source, .. } = error else {
        panic!("{error}");
    };
    assert!(source.to_string().contains("memory"), "{source}");
}

#[test]
fn unpacks_lzma() {
    let options = LzmaOptions::with_preset(1);
    let mut encoder = LzmaWriter::new_use_header(Vec::new(), &options, None).unwrap();
    encoder.write_all(&kernel()).unwrap();
    assert_unpacks(&with_trailer(encoder.finish().unwrap()));
}

#[test]
fn unpacks_lz4() {
    let mut packed = 0x184c_2102_u32.to_le_bytes().to_vec();
    let block = lz4_flex::block::compress(&kernel());
    packed.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
    packed.extend(block);
    assert_unpacks(&with_trailer(packed));
}

#[test]
fn unpacks_zstd() {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let packed = compress_to_vec(&kernel()[..], CompressionLevel::Fastest);
    assert_unpacks(&with_trailer(packed));
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
    let image = bzimage(&gzip());
    let error = extract_vmlinux(&image[..image.len() - 10]).unwrap_err();
    assert!(
        matches!(error, PayloadError::Header(HeaderError::Truncated { .. })),
        "{error}"
    );
}

#[test]
fn a_damaged_payload_is_corrupt() {
    let mut packed = gzip();
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
