//! The bytes of a file, decompressed.
//!
//! Distributions compress modules, and some compress the debug files of modules, too. The first bytes tell, since a name may say anything.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use files::ReadError;
use lzma_rust2::XzReader;

use crate::error::OpenError;
use crate::zstd::ZstdFrames;

/// A kernel with debug information has less than 1 GiB, and with everything built in, a few.
const MAX_FILE_BYTES: u64 = 16 << 30;
/// The debug file of the largest module, a graphics driver's, has 500 MB. A compressed file is in memory as a whole.
const MAX_UNPACKED_BYTES: u64 = 2 << 30;
/// The first bytes of compressed files.
const XZ: &[u8] = b"\xfd7zXZ\0";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
/// The memory for decompression: at the highest level of xz, a dictionary has 64 MiB.
const XZ_MEMORY_KIB: u32 = 128 << 10;

/// The bytes of a file.
#[derive(Debug)]
pub(crate) enum Stored {
    /// On disk: parts are read when they are needed.
    File(File),
    /// Decompressed.
    Memory(Vec<u8>),
}

impl Stored {
    /// Opens the regular file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, MAX_FILE_BYTES, MAX_UNPACKED_BYTES)
    }

    /// Opens the regular file at `path`, which may have `max` bytes, and decompressed, too.
    pub(crate) fn open_within(path: &Path, max: u64) -> Result<Self, OpenError> {
        Self::open_with(path, max, max.min(MAX_UNPACKED_BYTES))
    }

    fn open_with(path: &Path, max: u64, max_unpacked: u64) -> Result<Self, OpenError> {
        let (file, _) = files::open_regular(path, max)?;
        let mut first = [0; XZ.len()];
        let len = file.read_at(&mut first, 0).map_err(ReadError::from)?;
        let first = &first[..len];
        if first.starts_with(XZ) {
            let packed = packed(file, max_unpacked)?;
            let reader = XzReader::new_mem_limit(&*packed, true, XZ_MEMORY_KIB);
            return unpacked(reader, max_unpacked);
        }
        if first.starts_with(ZSTD) {
            let packed = packed(file, max_unpacked)?;
            return unpacked(ZstdFrames::new(&packed), max_unpacked);
        }
        Ok(Self::File(file))
    }

    /// The `size` bytes at `offset`.
    pub(crate) fn read(&self, offset: u64, size: u64) -> io::Result<Vec<u8>> {
        // The size is the file's word: no memory before the bytes are known to exist.
        let end = offset.checked_add(size).filter(|&end| end <= self.len());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        match self {
            Self::File(file) => {
                let mut bytes = zeroed(size)?;
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }
            Self::Memory(bytes) => {
                let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
                let part = range.and_then(|(start, end)| bytes.get(start..end));
                Ok(part.ok_or(io::ErrorKind::UnexpectedEof)?.to_vec())
            }
        }
    }

    fn len(&self) -> u64 {
        match self {
            // If the size is not known, the read fails.
            Self::File(file) => file.metadata().map_or(u64::MAX, |file| file.len()),
            Self::Memory(bytes) => bytes.len() as u64,
        }
    }
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

fn packed(file: File, max: u64) -> Result<Vec<u8>, OpenError> {
    let bytes = within(max, file);
    bytes?.map_err(|error| ReadError::from(error).into())
}

fn unpacked(decoder: impl Read, max: u64) -> Result<Stored, OpenError> {
    let bytes = within(max, decoder)?;
    bytes.map(Stored::Memory).map_err(OpenError::Compressed)
}

/// All bytes of `source`, at most `max`.
fn within(max: u64, source: impl Read) -> Result<io::Result<Vec<u8>>, OpenError> {
    let mut bytes = Vec::new();
    let read = source.take(max + 1).read_to_end(&mut bytes);
    match bytes.len() as u64 > max {
        true => Err(OpenError::TooLarge { max }),
        false => Ok(read.map(|_| bytes)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use lzma_rust2::{XzOptions, XzWriter};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    #[test]
    fn compressed_file_is_read_as_its_contents() {
        let folder = tempfile::tempdir().expect("tempdir");
        let contents: Vec<u8> = (0..=u8::MAX).cycle().take(10_000).collect();
        let mut xz = XzWriter::new(Vec::new(), XzOptions::default()).expect("xz");
        xz.write_all(&contents).expect("xz");
        let xz = xz.finish().expect("xz");
        let zstd = compress_to_vec(&*contents, CompressionLevel::Fastest);
        for (name, bytes) in [("plain", &contents), ("xz", &xz), ("zstd", &zstd)] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            let stored = Stored::open(&path).expect(name);
            assert_eq!(stored.read(5, 100).expect(name), contents[5..105], "{name}");
            Stored::open_within(&path, 10_000).expect(name);
            let error = Stored::open_within(&path, 9_999).expect_err(name);
            assert!(error.to_string().contains("9999"), "{name}: {error}");
            let behind = stored.read(contents.len() as u64 - 1, 2);
            assert_eq!(
                behind.expect_err(name).kind(),
                io::ErrorKind::UnexpectedEof,
                "{name}"
            );
            if name != "plain" {
                std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
                let error = Stored::open(&path).expect_err("cut");
                assert!(matches!(error, OpenError::Compressed(_)), "{name}: {error}");
            }
        }
    }

    #[test]
    fn more_bytes_than_the_maximum_are_refused() {
        assert_eq!(
            within(4, &b"four"[..]).expect("four").expect("read"),
            b"four"
        );
        let error = within(3, &b"four"[..]).expect_err("too large");
        assert!(matches!(error, OpenError::TooLarge { max: 3 }), "{error}");
    }
}
