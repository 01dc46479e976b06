//! Taking the ELF `vmlinux` out of a bzImage.
//!
//! The setup header gives the payload's range; the payload's magic number gives the compression.
//! There is no search for a magic number: bytes that look like a magic number occur in any kernel.

use std::io::{self, Read};

use thiserror::Error;

use super::header::{HeaderError, SetupHeader};

/// Largest size of an unpacked kernel. Debian's kernels have 40–70 MiB, a kernel with everything
/// built in has 200.
pub const MAX_VMLINUX_BYTES: u64 = 512 << 20;

/// Behind every format except gzip, the build appends the unpacked size in 4 bytes; gzip has the
/// size inside.
const SIZE_TRAILER_BYTES: usize = 4;
/// `zstd --ultra -22`, with which kernels are packed, uses a window of 128 MiB.
const MAX_ZSTD_WINDOW_BYTES: u64 = 256 << 20;
/// Bound on the dictionary of an xz or lzma payload; kernels are packed with 128 MiB or less.
const MAX_LZMA_MEMORY_KIB: u32 = 256 << 10;
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// Why no kernel could be taken out of a bzImage.
#[derive(Debug, Error)]
pub enum PayloadError {
    /// The file is not a bzImage, or not a whole one.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The payload starts with no known magic number.
    #[error(
        "its payload at 0x{offset:x} has an unknown compression (starts with {}); \
         gzip, bzip2, xz, lzma, lz4 and zstd are supported",
        hex(start)
    )]
    UnknownCompression {
        /// Offset of the payload in the file.
        offset: usize,
        /// The payload's first bytes.
        start: Vec<u8>,
    },
    /// Decompression failed.
    #[error("its {compression} payload at 0x{offset:x} is corrupt")]
    Corrupt {
        /// Offset of the payload in the file.
        offset: usize,
        /// The format's name.
        compression: &'static str,
        /// The decompressor's error.
        source: io::Error,
    },
    /// The unpacked kernel is unreasonably large.
    #[error("its {compression} payload unpacks to more than 0x{MAX_VMLINUX_BYTES:x} bytes")]
    TooLarge {
        /// The format's name.
        compression: &'static str,
    },
    /// The unpacked payload is not an ELF file.
    #[error(
        "its {compression} payload is not an ELF file (starts with {})",
        hex(start)
    )]
    NotElf {
        /// The format's name.
        compression: &'static str,
        /// The first bytes unpacked.
        start: Vec<u8>,
    },
}

/// How a payload is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Gzip,
    Bzip2,
    Xz,
    Lzma,
    Lz4,
    Zstd,
}

impl Compression {
    const MAGICS: [(&'static [u8], Self); 6] = [
        (b"\x1f\x8b", Self::Gzip),
        (b"BZh", Self::Bzip2),
        (b"\xfd7zXZ\0", Self::Xz),
        (b"\x5d\0\0", Self::Lzma),
        (b"\x02\x21\x4c\x18", Self::Lz4),
        (b"\x28\xb5\x2f\xfd", Self::Zstd),
    ];

    fn of(payload: &[u8]) -> Option<Self> {
        Self::MAGICS
            .into_iter()
            .find_map(|(magic, format)| payload.starts_with(magic).then_some(format))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Bzip2 => "bzip2",
            Self::Xz => "xz",
            Self::Lzma => "lzma",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    fn decoder<'a>(self, payload: &'a [u8]) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::Gzip => Box::new(flate2::read::GzDecoder::new(payload)),
            Self::Bzip2 => Box::new(bzip2::read::BzDecoder::new(payload)),
            Self::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(
                payload,
                false,
                MAX_LZMA_MEMORY_KIB,
            )),
            Self::Lzma => Box::new(lzma_rust2::LzmaReader::new_mem_limit(
                payload,
                MAX_LZMA_MEMORY_KIB,
                None,
            )?),
            Self::Lz4 => {
                // The legacy frame has no end mark: the trailer would be taken for a block's size.
                let blocks = payload.len().saturating_sub(SIZE_TRAILER_BYTES);
                Box::new(lz4_flex::frame::FrameDecoder::new(&payload[..blocks]))
            }
            Self::Zstd => Box::new(
                ruzstd::decoding::StreamingDecoder::new_with_max_window_size(
                    payload,
                    MAX_ZSTD_WINDOW_BYTES,
                )
                .map_err(io::Error::other)?,
            ),
        })
    }
}

/// Unpacks the ELF `vmlinux` of a bzImage.
///
/// # Errors
///
/// When `image` is not a whole bzImage, or its payload is packed in an unknown way, is corrupt,
/// larger than [`MAX_VMLINUX_BYTES`] or no ELF file.
pub fn extract_vmlinux(image: &[u8]) -> Result<Vec<u8>, PayloadError> {
    let header = SetupHeader::parse(image)?;
    let range = header.payload_range(image)?;
    let (offset, payload) = (range.start, &image[range]);
    let format = Compression::of(payload).ok_or_else(|| PayloadError::UnknownCompression {
        offset,
        start: first_bytes(payload),
    })?;
    let compression = format.name();

    let mut vmlinux = Vec::new();
    let read = format
        .decoder(payload)
        .and_then(|decoder| {
            decoder
                .take(MAX_VMLINUX_BYTES + 1)
                .read_to_end(&mut vmlinux)
        })
        .map_err(|source| PayloadError::Corrupt {
            offset,
            compression,
            source,
        })?;
    if u64::try_from(read).is_ok_and(|read| read > MAX_VMLINUX_BYTES) {
        return Err(PayloadError::TooLarge { compression });
    }
    if !vmlinux.starts_with(&ELF_MAGIC) {
        return Err(PayloadError::NotElf {
            compression,
            start: first_bytes(&vmlinux),
        });
    }
    Ok(vmlinux)
}

fn first_bytes(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().take(6).collect()
}

fn hex(bytes: &[u8]) -> String {
    let words: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests;
