//! The contents of a section, decompressed.

use std::io::{self, Read};

use object::{CompressionFormat, ObjectSection};

use crate::error::OpenError;
use crate::stored::Stored;
use crate::zstd::ZstdFrames;

/// Reads `section` out of `contents`. The section may have at most `max` bytes of the `limit` for all sections.
pub(crate) fn read_section<'data>(
    section: &impl ObjectSection<'data>,
    name: &'static str,
    contents: &Stored,
    max: u64,
    limit: u64,
) -> Result<Vec<u8>, OpenError> {
    let range = section.compressed_file_range().map_err(OpenError::Elf)?;
    if range.uncompressed_size > max || range.compressed_size > max {
        return Err(OpenError::TooLarge { max: limit });
    }
    let failed = |source| OpenError::Section {
        section: name,
        source,
    };
    let stored = contents
        .read(range.offset, range.compressed_size)
        .map_err(failed)?;
    match range.format {
        CompressionFormat::None => Ok(stored),
        CompressionFormat::Zlib => {
            let decoder = flate2::read::ZlibDecoder::new(&*stored);
            exactly(decoder, range.uncompressed_size).map_err(failed)
        }
        CompressionFormat::Zstandard => {
            let frames = ZstdFrames::new(&stored);
            exactly(frames, range.uncompressed_size).map_err(failed)
        }
        _ => Err(failed(io::Error::other(
            "hyprobe does not know the section's compression",
        ))),
    }
}

/// The output of `decoder`, which must have `size` bytes.
fn exactly(decoder: impl Read, size: u64) -> io::Result<Vec<u8>> {
    // Grows with the output: a small section may name any size.
    let mut bytes = Vec::new();
    decoder
        .take(size.saturating_add(1))
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 == size {
        true => Ok(bytes),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it has not the {size} bytes that its header names"),
        )),
    }
}
