//! Reads of regular files up to a maximum size.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// A file is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system's answer.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The name does not lead to a regular file.
    #[error("it is {found}, not a regular file: give a file with the contents")]
    NotRegular {
        /// The type of the file, with an article.
        found: &'static str,
    },
    /// The file is too large.
    #[error("it has more than {max} bytes")]
    TooLarge {
        /// The maximum number of bytes.
        max: u64,
    },
}

/// Opens the regular file at `path`, which may be a symbolic link, for reading. The file may have at most `max` bytes. Returns the file and its size.
///
/// The call waits for no other process: a FIFO without a writer is an error at once.
///
/// # Errors
///
/// See [`ReadError`].
pub fn open_regular(path: &Path, max: u64) -> Result<(File, u64), ReadError> {
    // Without `NONBLOCK`, the open of a FIFO waits for a writer. Reads of regular files ignore the flag.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        // A file server has lent the file to a client (a lease), and the kernel asks for the file back.
        Err(Errno::WOULDBLOCK) if is_regular(path) => {
            rustix::fs::open(path, flags - OFlags::NONBLOCK, Mode::empty())
        }
        opened => opened,
    };
    let file: File = file.map_err(io::Error::from)?.into();
    let stat = rustix::fs::fstat(&file).map_err(io::Error::from)?;
    let found = FileType::from_raw_mode(stat.st_mode);
    if found != FileType::RegularFile {
        return Err(ReadError::NotRegular {
            found: described(found),
        });
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > max {
        return Err(ReadError::TooLarge { max });
    }
    Ok((file, size))
}

/// Reads the regular file at `path`, which may be a symbolic link. The file may have at most `max` bytes.
///
/// The call waits for no other process: a FIFO without a writer is an error at once.
///
/// # Errors
///
/// See [`ReadError`].
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    let (file, size) = open_regular(path, max)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(usize::try_from(size).unwrap_or(usize::MAX))
        .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    // The file may grow meanwhile, and files in /proc have no size.
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    match u64::try_from(bytes.len()) {
        Ok(len) if len <= max => Ok(bytes),
        _ => Err(ReadError::TooLarge { max }),
    }
}

fn is_regular(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file())
}

fn described(found: FileType) -> &'static str {
    match found {
        FileType::Directory => "a directory",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Fifo => "a FIFO or a pipe",
        FileType::Socket => "a socket",
        _ => "a file of another type",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, mkfifoat};

    use super::*;

    fn folder_with_file(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("file");
        fs::write(&path, bytes).expect("write");
        (folder, path)
    }

    #[test]
    fn a_file_of_the_maximum_size_is_read_and_one_byte_more_is_refused() {
        let (_folder, path) = folder_with_file(b"four");
        assert_eq!(read(&path, 4).expect("read"), b"four");
        let error = read(&path, 3).expect_err("too large");
        assert!(matches!(error, ReadError::TooLarge { max: 3 }), "{error}");
    }

    #[test]
    fn a_link_to_a_file_is_followed() {
        let (folder, path) = folder_with_file(b"four");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert_eq!(read(&link, 4).expect("read"), b"four");
    }

    #[test]
    fn a_file_that_names_no_size_is_read_up_to_the_maximum() {
        let path = Path::new("/proc/self/stat");
        assert!(!read(path, 1 << 20).expect("read").is_empty());
        let error = read(path, 3).expect_err("too large");
        assert!(matches!(error, ReadError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn devices_directories_and_fifos_are_refused_at_once() {
        let folder = tempfile::tempdir().expect("tempdir");
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o600)).expect("a FIFO");
        for (path, expected) in [
            (Path::new("/dev/zero"), "a device"),
            (folder.path(), "a directory"),
            (&fifo, "a FIFO or a pipe"),
        ] {
            match read(path, 4) {
                Err(ReadError::NotRegular { found }) => assert_eq!(found, expected),
                other => panic!("{}: {other:?}", path.display()),
            }
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_the_systems_error() {
        let error = read(Path::new("/nonexistent/file"), 4).expect_err("nothing there");
        assert!(matches!(error, ReadError::Io(_)), "{error}");
    }
}
