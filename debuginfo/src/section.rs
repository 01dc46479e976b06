//! The contents of a section, decompressed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use object::{CompressionFormat, ObjectSection};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

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
            let frames = ZstdFrames::new(&stored);
            exactly(frames, range.uncompressed_size).map_err(failed)
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

/// The output of all frames of a compressed section. Linkers compress the parts of a large section at the same time, each into a frame.
struct ZstdFrames<'a> {
    frame: Option<StreamingDecoder<&'a [u8], FrameDecoder>>,
    behind: &'a [u8],
}

impl<'a> ZstdFrames<'a> {
    const fn new(section: &'a [u8]) -> Self {
        Self {
            frame: None,
            behind: section,
        }
    }

    fn open_frame(&mut self) -> io::Result<Option<&mut StreamingDecoder<&'a [u8], FrameDecoder>>> {
        if self.frame.is_none() && !self.behind.is_empty() {
            let frame = StreamingDecoder::new(self.behind).map_err(io::Error::other)?;
            self.frame = Some(frame);
        }
        Ok(self.frame.as_mut())
    }
}

impl Read for ZstdFrames<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(frame) = self.open_frame()? {
            let read = frame.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            // The end of the frame, which has at least the bytes of a header.
            self.behind = frame.get_ref();
            self.frame = None;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    #[test]
    fn all_frames_of_a_section_are_decompressed() {
        let parts = [&b"one"[..], &[7; 5000], b"", b"three"];
        let frame = |part: &&[u8]| compress_to_vec(*part, CompressionLevel::Fastest);
        let section: Vec<u8> = parts.iter().flat_map(frame).collect();
        let whole = parts.concat();
        let read = exactly(ZstdFrames::new(&section), whole.len() as u64);
        assert_eq!(read.expect("the whole"), whole);
        let cut = ZstdFrames::new(&section[..section.len() - 3]);
        assert!(exactly(cut, whole.len() as u64).is_err());
    }
}
