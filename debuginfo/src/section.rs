//! The contents of a section, decompressed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use object::{CompressionFormat, ObjectSection};

use crate::error::OpenError;

/// Reads `section` out of `contents`. The section may have at most `max` bytes of the `limit` for all sections.
pub(crate) fn read_section<'data>(
    section: &impl ObjectSection<'data>,
    name: &'static str,
    contents: &File,
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
    let stored = stored(contents, range.offset, range.compressed_size).map_err(failed)?;
    match range.format {
        CompressionFormat::None => Ok(stored),
        CompressionFormat::Zlib => {
            let decoder = flate2::read::ZlibDecoder::new(&*stored);
            exactly(decoder, range.uncompressed_size).map_err(failed)
        }
        CompressionFormat::Zstandard => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(&*stored)
                .map_err(|error| failed(io::Error::other(error)))?;
            exactly(decoder, range.uncompressed_size).map_err(failed)
        }
        _ => Err(failed(io::Error::other(
            "hyprobe does not know the section's compression",
        ))),
    }
}

fn stored(contents: &File, offset: u64, size: u64) -> io::Result<Vec<u8>> {
    // The size is the file's word: no memory before the bytes are known to exist.
    let end = offset.checked_add(size);
    if end.is_none_or(|end| contents.metadata().is_ok_and(|file| end > file.len())) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut bytes = zeroed(size)?;
    contents.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn zeroed(size: u64) -> io::Result<Vec<u8>> {
    let size = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(size)
        .map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.resize(size, 0);
    Ok(bytes)
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
