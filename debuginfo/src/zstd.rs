//! Decompression of zstd.

use std::io::{self, Read};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// The output of all frames of a compressed section or file. Linkers compress the parts of a large section at the same time, each into a frame.
pub(crate) struct ZstdFrames<'a> {
    frame: Option<StreamingDecoder<&'a [u8], FrameDecoder>>,
    behind: &'a [u8],
}

impl<'a> ZstdFrames<'a> {
    pub(crate) const fn new(section: &'a [u8]) -> Self {
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
        let read = |section: &[u8]| {
            let mut read = Vec::new();
            ZstdFrames::new(section)
                .read_to_end(&mut read)
                .map(|_| read)
        };
        assert_eq!(read(&section).expect("the whole"), whole);
        assert!(read(&section[..section.len() - 3]).is_err());
    }
}
