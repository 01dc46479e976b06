//! Builds an initramfs in memory.
//!
//! The format is newc, described in the kernel's `early_userspace` documentation. The bytes depend only on the contents: the archive has
//! no time, no owner and no inode number of the host, and entries are in the order of their paths.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cpio::newc;
use files::ReadError;
use flate2::{Compression, GzBuilder};
use thiserror::Error;

const KIND_DIRECTORY: u32 = 0o040_000;
const KIND_FILE: u32 = 0o100_000;
const KIND_SYMLINK: u32 = 0o120_000;
const KIND_CHARACTER: u32 = 0o020_000;

/// Why an initramfs could not be built.
#[derive(Debug, Error)]
pub enum InitramfsError {
    /// A file of the host could not be read.
    #[error("cannot read {path}, which belongs into the initramfs as /{name}")]
    HostFile {
        /// The file on the host.
        path: PathBuf,
        /// The path in the initramfs.
        name: String,
        /// The cause.
        source: ReadError,
    },
    /// The format holds sizes in 32 bits.
    #[error("/{name} has {bytes:#x} bytes; a file in an initramfs must be smaller than 4 GiB")]
    TooLarge {
        /// The path in the initramfs.
        name: String,
        /// The file's size.
        bytes: usize,
    },
    /// The archive could not be written to memory.
    #[error("cannot write the initramfs")]
    Write(#[from] io::Error),
}

/// The maximum size of a file of the host.
const MAX_HOST_FILE_BYTES: u64 = 1 << 30;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32 },
    File { mode: u32, bytes: Vec<u8> },
    Symlink { target: String },
    CharacterDevice { mode: u32, major: u32, minor: u32 },
}

/// The description of an initramfs. Parent directories of an entry are added automatically; a later entry replaces an earlier entry with
/// the same path.
#[derive(Debug, Clone, Default)]
pub struct Initramfs {
    entries: BTreeMap<String, Entry>,
}

impl Initramfs {
    /// An empty initramfs.
    pub fn new() -> Self {
        Self::default()
    }

    /// An initramfs with `/dev/console`, `/dev/null` and `/dev/zero`: an init needs the devices before the first mount.
    pub fn with_devices() -> Self {
        let mut initramfs = Self::new();
        initramfs
            .character_device("dev/console", 0o600, 5, 1)
            .character_device("dev/null", 0o666, 1, 3)
            .character_device("dev/zero", 0o666, 1, 5);
        initramfs
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str, mode: u32) -> &mut Self {
        self.insert(path, Entry::Directory { mode })
    }

    /// Adds a file with the contents `bytes`.
    pub fn file(&mut self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.insert(
            path,
            Entry::File {
                mode,
                bytes: bytes.into(),
            },
        )
    }

    /// Adds a copy of a file of the host.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn host_file(
        &mut self,
        path: &str,
        mode: u32,
        host: &Path,
    ) -> Result<&mut Self, InitramfsError> {
        let bytes =
            files::read(host, MAX_HOST_FILE_BYTES).map_err(|source| InitramfsError::HostFile {
                path: host.to_owned(),
                name: relative(path).to_owned(),
                source,
            })?;
        Ok(self.file(path, mode, bytes))
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.insert(
            path,
            Entry::Symlink {
                target: target.to_owned(),
            },
        )
    }

    /// Adds a character device.
    pub fn character_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> &mut Self {
        self.insert(path, Entry::CharacterDevice { mode, major, minor })
    }

    /// The archive, uncompressed.
    ///
    /// # Errors
    ///
    /// A file is too large for the format.
    pub fn build(&self) -> Result<Vec<u8>, InitramfsError> {
        self.write(Vec::new())
    }

    /// The archive, compressed with gzip, which every kernel can unpack.
    ///
    /// # Errors
    ///
    /// A file is too large for the format.
    pub fn build_gzip(&self) -> Result<Vec<u8>, InitramfsError> {
        let encoder = GzBuilder::new()
            .mtime(0)
            .write(Vec::new(), Compression::fast());
        Ok(self.write(encoder)?.finish()?)
    }

    fn insert(&mut self, path: &str, entry: Entry) -> &mut Self {
        let path = relative(path);
        for (slash, _) in path.match_indices('/') {
            self.entries
                .entry(path[..slash].to_owned())
                .or_insert(Entry::Directory { mode: 0o755 });
        }
        self.entries.insert(path.to_owned(), entry);
        self
    }

    fn write<W: Write>(&self, mut output: W) -> Result<W, InitramfsError> {
        for (inode, (name, entry)) in (1_u32..).zip(&self.entries) {
            let builder = newc::Builder::new(name).ino(inode).nlink(1);
            output = match entry {
                Entry::Directory { mode } => append(
                    output,
                    builder.mode(KIND_DIRECTORY | mode).nlink(2),
                    name,
                    &[],
                )?,
                Entry::File { mode, bytes } => {
                    append(output, builder.mode(KIND_FILE | mode), name, bytes)?
                }
                Entry::Symlink { target } => append(
                    output,
                    builder.mode(KIND_SYMLINK | 0o777),
                    name,
                    target.as_bytes(),
                )?,
                Entry::CharacterDevice { mode, major, minor } => {
                    let device = builder.rdev_major(*major).rdev_minor(*minor);
                    append(output, device.mode(KIND_CHARACTER | mode), name, &[])?
                }
            };
        }
        Ok(newc::trailer(output)?)
    }
}

fn append<W: Write>(
    output: W,
    builder: newc::Builder,
    name: &str,
    bytes: &[u8],
) -> Result<W, InitramfsError> {
    let size = u32::try_from(bytes.len()).map_err(|_| InitramfsError::TooLarge {
        name: name.to_owned(),
        bytes: bytes.len(),
    })?;
    let mut writer = builder.write(output, size);
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

fn relative(path: &str) -> &str {
    path.trim_matches('/')
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn sample() -> Initramfs {
        let mut initramfs = Initramfs::with_devices();
        initramfs
            .file("/bin/a-b", 0o755, *b"#!")
            .file("bin/deep/er/x", 0o644, vec![7; 5])
            .symlink("/bin/sh", "a-b")
            .directory("proc", 0o555);
        initramfs
    }

    fn list(mut archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        loop {
            let mut reader = newc::Reader::new(archive).expect("entry");
            if reader.entry().is_trailer() {
                return found;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            assert_eq!((reader.entry().mtime(), reader.entry().uid()), (0, 0));
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).expect("contents");
            found.push((name, mode, bytes));
            archive = reader.finish().expect("next");
        }
    }

    #[test]
    fn directories_come_before_their_contents() {
        let names: Vec<_> = list(&sample().build().expect("build"))
            .into_iter()
            .collect();
        let names: Vec<_> = names
            .iter()
            .map(|(name, mode, _)| (name.as_str(), *mode))
            .collect();
        assert_eq!(
            names,
            [
                ("bin", 0o040_755),
                ("bin/a-b", 0o100_755),
                ("bin/deep", 0o040_755),
                ("bin/deep/er", 0o040_755),
                ("bin/deep/er/x", 0o100_644),
                ("bin/sh", 0o120_777),
                ("dev", 0o040_755),
                ("dev/console", 0o020_600),
                ("dev/null", 0o020_666),
                ("dev/zero", 0o020_666),
                ("proc", 0o040_555),
            ]
        );
    }

    #[test]
    fn contents_and_link_targets_are_kept() {
        let entries = list(&sample().build().expect("build"));
        let of = |name: &str| {
            entries
                .iter()
                .find(|entry| entry.0 == name)
                .expect(name)
                .2
                .clone()
        };
        assert_eq!(of("bin/deep/er/x"), [7; 5]);
        assert_eq!(of("bin/sh"), b"a-b");
    }

    #[test]
    fn the_bytes_depend_on_the_contents_alone() {
        assert_eq!(
            sample().build().expect("one"),
            sample().build().expect("two")
        );
        let packed = sample().build_gzip().expect("gzip");
        assert_eq!(packed, sample().build_gzip().expect("again"));
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&packed[..])
            .read_to_end(&mut unpacked)
            .expect("gunzip");
        assert_eq!(unpacked, sample().build().expect("plain"));
    }

    #[test]
    fn a_missing_host_file_names_both_places() {
        let mut initramfs = Initramfs::new();
        let error = initramfs
            .host_file("/bin/busybox", 0o755, Path::new("/nonexistent/busybox"))
            .expect_err("missing");
        let text = error.to_string();
        assert!(
            text.contains("/nonexistent/busybox") && text.contains("/bin/busybox"),
            "{text}"
        );
    }
}
