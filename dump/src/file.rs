//! An output in which zeros are holes, if the output can have holes.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};

/// Zeros that are written at once to an output without holes.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// A file that is written from its start to its end.
#[derive(Debug)]
pub struct SparseFile {
    file: File,
    /// Whether zeros can be holes: the output is an empty regular file. A pipe, or a file that is appended to, gets the zeros.
    has_holes: bool,
    /// The bytes before the pending zeros.
    written: u64,
    pending_zeros: u64,
}

impl SparseFile {
    /// Writes to `file`, from the present position on.
    ///
    /// # Errors
    ///
    /// If the file's properties cannot be read.
    pub fn new(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            has_holes: metadata.is_file() && metadata.len() == 0,
            file,
            written: 0,
            pending_zeros: 0,
        })
    }

    /// Appends `count` zeros.
    pub fn zeros(&mut self, count: u64) {
        self.pending_zeros = self.pending_zeros.saturating_add(count);
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put_zeros()?;
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Writes the last zeros. Returns the size of the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(mut self) -> io::Result<u64> {
        self.put_zeros()?;
        self.file.flush()?;
        Ok(self.written)
    }

    /// Empties a regular file: a part of a dump is worth nothing.
    pub fn discard(self) {
        if self.has_holes {
            // If the file stays, its size differs from the size in its headers, and readers say so.
            let _ = self.file.set_len(0);
        }
    }

    fn put_zeros(&mut self) -> io::Result<()> {
        let count = std::mem::take(&mut self.pending_zeros);
        if count == 0 {
            return Ok(());
        }
        let end = self
            .written
            .checked_add(count)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        if self.has_holes {
            // A shell's `>>` opens a file for appending: the end of the file, not the position, says where bytes go.
            self.file.set_len(end)?;
            self.file.seek(SeekFrom::Start(end))?;
        } else {
            let mut left = count;
            while left > 0 {
                let here = left.min(ZEROS.len() as u64);
                self.file
                    .write_all(&ZEROS[..usize::try_from(here).unwrap_or(0)])?;
                left -= here;
            }
        }
        self.written = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn write(file: File) -> u64 {
        let mut file = SparseFile::new(file).expect("a file");
        file.zeros(1 << 20);
        file.write(b"x").expect("written");
        file.zeros(1 << 19);
        file.zeros(1 << 19);
        file.finish().expect("written")
    }

    fn expected() -> Vec<u8> {
        let mut bytes = vec![0; (2 << 20) + 1];
        bytes[1 << 20] = b'x';
        bytes
    }

    #[test]
    fn zeros_are_holes_of_a_regular_file_also_if_it_is_appended_to() {
        let folder = tempfile::tempdir().expect("tempdir");
        for append in [false, true] {
            let path = folder.path().join(append.to_string());
            let mut options = File::options();
            options.write(!append).append(append).create(true);
            let size = write(options.open(&path).expect("a file"));
            assert_eq!(std::fs::read(&path).expect("read"), expected());
            let metadata = std::fs::metadata(&path).expect("there");
            assert_eq!(metadata.len(), size);
            assert!(metadata.blocks() * 512 < 1 << 20, "{metadata:?}");
        }
    }

    #[test]
    fn pipe_gets_the_zeros() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let writer: std::os::fd::OwnedFd = writer.into();
        let writing = std::thread::spawn(move || write(writer.into()));
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes, expected());
        assert_eq!(writing.join().expect("no panic"), bytes.len() as u64);
    }

    #[test]
    fn discarded_file_is_empty() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut sparse = SparseFile::new(file.reopen().expect("open")).expect("a file");
        sparse.write(b"half").expect("written");
        sparse.discard();
        assert_eq!(std::fs::metadata(file.path()).expect("there").len(), 0);
    }
}
