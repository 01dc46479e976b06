//! Kernels made up for tests: a bzImage around any payload, an ELF file with any segments.

use std::mem::offset_of;

use linux_loader::bootparam::boot_params;
use lzma_rust2::{FilterType, LzmaOptions, LzmaWriter, XzOptions, XzWriter};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// Setup sectors behind the boot sector.
const SETUP_SECTS: u8 = 2;
/// Where the protected-mode kernel starts.
pub const SETUP_BYTES: usize = 3 * 512;
/// Offset of the payload in the protected-mode kernel.
pub const PAYLOAD_OFFSET: u32 = 0x240;
/// The load address that the made-up header asks for.
pub const PREF_ADDRESS: u64 = 0x40_0000;
/// The memory size that the made-up header asks for.
pub const INIT_SIZE: u32 = 0x2_0000;

/// A bzImage with a header of protocol 2.15.
pub fn bzimage(payload: &[u8]) -> Vec<u8> {
    let mut image = vec![0; SETUP_BYTES];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let length = u32::try_from(payload.len()).expect("test payloads are small");
    put(offset_of!(boot_params, hdr.setup_sects), &[SETUP_SECTS]);
    put(offset_of!(boot_params, hdr.boot_flag), &[0x55, 0xaa]);
    put(offset_of!(boot_params, hdr.jump), &[0xeb, 0x6a]);
    put(offset_of!(boot_params, hdr.header), b"HdrS");
    put(
        offset_of!(boot_params, hdr.version),
        &0x020f_u16.to_le_bytes(),
    );
    put(offset_of!(boot_params, hdr.xloadflags), &[0x3f, 0]);
    put(
        offset_of!(boot_params, hdr.cmdline_size),
        &2047_u32.to_le_bytes(),
    );
    put(
        offset_of!(boot_params, hdr.initrd_addr_max),
        &0x7fff_ffff_u32.to_le_bytes(),
    );
    put(
        offset_of!(boot_params, hdr.payload_offset),
        &PAYLOAD_OFFSET.to_le_bytes(),
    );
    put(
        offset_of!(boot_params, hdr.payload_length),
        &length.to_le_bytes(),
    );
    put(
        offset_of!(boot_params, hdr.pref_address),
        &PREF_ADDRESS.to_le_bytes(),
    );
    put(
        offset_of!(boot_params, hdr.init_size),
        &INIT_SIZE.to_le_bytes(),
    );
    image.resize(SETUP_BYTES + 0x240, 0x90);
    image.extend_from_slice(payload);
    image
}

/// A compression of payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum Packer {
    Gzip,
    Bzip2,
    Xz,
    Lzma,
    Lz4,
    Zstd,
}

impl Packer {
    /// All compressions.
    pub const ALL: [Self; 6] = [
        Self::Gzip,
        Self::Bzip2,
        Self::Xz,
        Self::Lzma,
        Self::Lz4,
        Self::Zstd,
    ];

    /// Packs `kernel` into a payload, as the kernel's build does: with the size at the end, except for gzip.
    #[must_use]
    pub fn pack(self, kernel: &[u8]) -> Vec<u8> {
        let mut packed = match self {
            Self::Gzip => {
                let level = flate2::Compression::fast();
                let encoder = flate2::write::GzEncoder::new(Vec::new(), level);
                return written(encoder, kernel).finish().expect("a vector");
            }
            Self::Bzip2 => {
                let level = bzip2::Compression::fast();
                let encoder = bzip2::write::BzEncoder::new(Vec::new(), level);
                written(encoder, kernel).finish().expect("a vector")
            }
            Self::Xz => {
                let mut options = XzOptions::with_preset(1);
                options.prepend_pre_filter(FilterType::BcjX86, 0);
                let encoder = XzWriter::new(Vec::new(), options).expect("options");
                written(encoder, kernel).finish().expect("a vector")
            }
            Self::Lzma => {
                let options = LzmaOptions::with_preset(1);
                let encoder = LzmaWriter::new_use_header(Vec::new(), &options, None);
                written(encoder.expect("options"), kernel)
                    .finish()
                    .expect("a vector")
            }
            Self::Lz4 => {
                let block = lz4_flex::block::compress(kernel);
                let mut packed = 0x184c_2102_u32.to_le_bytes().to_vec();
                packed.extend(u32::try_from(block.len()).expect("small").to_le_bytes());
                packed.extend(block);
                packed
            }
            Self::Zstd => compress_to_vec(kernel, CompressionLevel::Fastest),
        };
        packed.extend(u32::try_from(kernel.len()).expect("small").to_le_bytes());
        packed
    }
}

fn written<W: std::io::Write>(mut encoder: W, bytes: &[u8]) -> W {
    encoder.write_all(bytes).expect("a vector");
    encoder
}

/// A loadable segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The physical address.
    pub paddr: u64,
    /// The virtual address.
    pub vaddr: u64,
    /// The bytes in the file.
    pub bytes: &'a [u8],
    /// The number of bytes in memory.
    pub memsz: u64,
}

/// An ELF file for x86-64.
pub fn elf(entry: u64, segments: &[Segment<'_>]) -> Vec<u8> {
    const HEADER_BYTES: u16 = 64;
    const SEGMENT_BYTES: u16 = 56;

    let count = u16::try_from(segments.len()).expect("few segments");
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend(2_u16.to_le_bytes());
    file.extend(62_u16.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    file.extend(entry.to_le_bytes());
    file.extend(u64::from(HEADER_BYTES).to_le_bytes());
    file.extend([0; 12]);
    for half in [HEADER_BYTES, SEGMENT_BYTES, count, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let mut offset = u64::from(HEADER_BYTES) + u64::from(SEGMENT_BYTES * count);
    for segment in segments {
        let filesz = u64::try_from(segment.bytes.len()).expect("a length");
        file.extend(1_u32.to_le_bytes());
        file.extend(7_u32.to_le_bytes());
        let fields = [
            offset,
            segment.vaddr,
            segment.paddr,
            filesz,
            segment.memsz,
            0x1000,
        ];
        file.extend(fields.into_iter().flat_map(u64::to_le_bytes));
        offset += filesz;
    }
    for segment in segments {
        file.extend(segment.bytes);
    }
    file
}
