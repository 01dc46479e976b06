//! An output in which zeros are holes, if the output can have holes.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};

/// Zeros that are written at once to an output without holes.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// A file that is written from its start to its end.
#[derive(Debug)]
pub struct SparseFile {
    file: File,
    /// Zeros are holes, and the file is emptied before the first byte.
    has_holes: bool,
    has_begun: bool,
    /// The bytes before the pending zeros.
    written: u64,
    pending_zeros: u64,
}

impl SparseFile {
    /// Writes to the regular file `file`. The old contents stay until the first byte of a dump.
    #[must_use]
    pub const fn regular(file: File) -> Self {
        Self::new(file, true)
    }

    /// Writes to `file`, from the present position on: a pipe, or a file that another process has opened. Zeros are written as zeros, and
    /// nothing is emptied.
    #[must_use]
    pub const fn stream(file: File) -> Self {
        Self::new(file, false)
    }

    const fn new(file: File, has_holes: bool) -> Self {
        Self {
            file,
            has_holes,
            has_begun: false,
            written: 0,
            pending_zeros: 0,
        }
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

    /// Writes the last zeros, and waits until a regular file is on its disk. Returns the size of the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. A regular file is then empty.
    pub fn finish(mut self) -> io::Result<u64> {
        match self.put_zeros().and_then(|()| self.sync()) {
            Ok(()) => Ok(self.written),
            Err(error) => {
                self.discard();
                Err(error)
            }
        }
    }

    /// Empties a regular file, if its old contents are lost already: a part of a dump is worth nothing.
    pub fn discard(self) {
        if self.has_holes && self.has_begun {
            // If the file stays, its size differs from the size in its headers, and readers say so.
            let _ = self.file.set_len(0);
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match self.has_holes {
            true => self.file.sync_data(),
            false => self.file.flush(),
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        if self.has_holes && !self.has_begun {
            self.file.set_len(0)?;
        }
        self.has_begun = true;
        Ok(())
    }

    fn put_zeros(&mut self) -> io::Result<()> {
        self.begin()?;
        let count = std::mem::take(&mut self.pending_zeros);
        if count == 0 {
            return Ok(());
        }
        let end = self
            .written
            .checked_add(count)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        if self.has_holes {
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

    fn write(mut file: SparseFile) -> u64 {
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
    fn zeros_are_holes_of_a_regular_file_whose_old_contents_stay_until_the_first_byte() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(&[b'o'; 3 << 20]).expect("written");
        let sparse = SparseFile::regular(file.reopen().expect("open"));
        assert_eq!(file.as_file().metadata().expect("there").len(), 3 << 20);
        let size = write(sparse);
        assert_eq!(std::fs::read(file.path()).expect("read"), expected());
        let metadata = file.as_file().metadata().expect("there");
        assert_eq!(metadata.len(), size);
        assert!(metadata.blocks() * 512 < 1 << 20, "{metadata:?}");
    }

    /// A shell's `>>` opens a file for appending.
    #[test]
    fn stream_keeps_the_contents_of_the_file() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"log").expect("written");
        let append = || File::options().append(true).open(file.path());
        let size = write(SparseFile::stream(append().expect("open")));
        let contents = std::fs::read(file.path()).expect("read");
        let (log, core) = contents.split_at(3);
        assert_eq!((log, core), (&b"log"[..], &expected()[..]));
        assert_eq!(size, core.len() as u64);
        let mut half = SparseFile::stream(append().expect("open"));
        half.write(b"half").expect("written");
        half.discard();
        let length = file.as_file().metadata().expect("there").len();
        assert_eq!(length, size + 7);
    }

    #[test]
    fn pipe_gets_the_zeros() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let writer: std::os::fd::OwnedFd = writer.into();
        let writing = std::thread::spawn(move || write(SparseFile::stream(writer.into())));
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes, expected());
        assert_eq!(writing.join().expect("no panic"), bytes.len() as u64);
    }

    #[test]
    fn discarded_file_is_empty_or_old() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"old").expect("written");
        let open = || SparseFile::regular(file.reopen().expect("open"));
        let length = || std::fs::metadata(file.path()).expect("there").len();
        open().discard();
        assert_eq!(length(), 3);
        let mut sparse = open();
        sparse.write(b"half").expect("written");
        sparse.discard();
        assert_eq!(length(), 0);
    }

    #[test]
    fn file_that_cannot_be_finished_is_empty() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut sparse = SparseFile::regular(file.reopen().expect("open"));
        sparse.write(b"half").expect("written");
        sparse.zeros(u64::MAX);
        sparse.finish().expect_err("too large");
        assert_eq!(std::fs::metadata(file.path()).expect("there").len(), 0);
    }
}
