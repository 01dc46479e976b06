//! A file of an image in the cache, with the digest from the image's record.
//!
//! [`CachedFile::read`] compares the digest of the returned bytes with the record. A caller that boots or loads the returned bytes
//! therefore uses exactly the fetched bytes: a change of the file after the comparison has no effect.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use files::ReadError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::digest::Digest;

/// Why a file of an image could not be read.
#[derive(Debug, Error)]
pub enum CachedFileError {
    /// The system could not open or read the file.
    #[error(
        "cannot read {path} of the image {image}; `hyprobe images fetch --refresh {image}` repairs \
         the image"
    )]
    Read {
        /// The image.
        image: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ReadError,
    },
    /// The file has changed since the image was published.
    #[error(transparent)]
    Changed(Box<ChangedFile>),
}

/// A file with another digest than in the image's record.
#[derive(Debug, Error)]
#[error(
    "{path} of the image {image} has changed since it was fetched: its sha256 is {actual}, but \
     the image's record has {expected}; `hyprobe images fetch --refresh {image}` repairs the \
     image, or remove {} and fetch it again", .dir.display()
)]
pub struct ChangedFile {
    /// The image.
    pub image: String,
    /// The file.
    pub path: PathBuf,
    /// The image's directory.
    pub dir: PathBuf,
    /// The digest in the image's record.
    pub expected: Digest,
    /// The digest of the read bytes.
    pub actual: Digest,
}

/// The maximum size of a file of an image.
const MAX_BYTES: u64 = 2 << 30;

/// A file of an image, with the digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFile {
    image: String,
    dir: PathBuf,
    name: String,
    sha256: Digest,
}

impl CachedFile {
    /// The file `name`, relative to the directory `dir` of the image `image`.
    pub(crate) fn new(image: &str, dir: &Path, name: &str, sha256: Digest) -> Self {
        Self {
            image: image.to_owned(),
            dir: dir.to_owned(),
            name: name.to_owned(),
            sha256,
        }
    }

    /// The file's path, for messages and for programs with their own comparison of digests.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// The name of the file's image.
    #[must_use]
    pub fn image(&self) -> &str {
        &self.image
    }

    /// The file's bytes, after a comparison of their digest.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or its bytes have another digest.
    pub fn read(&self) -> Result<Vec<u8>, CachedFileError> {
        let path = self.path();
        let bytes = files::read(&path, MAX_BYTES).map_err(|source| CachedFileError::Read {
            image: self.image.clone(),
            path: path.clone(),
            source,
        })?;
        let actual = Digest::of(&bytes);
        if actual != self.sha256 {
            return Err(CachedFileError::Changed(Box::new(ChangedFile {
                image: self.image.clone(),
                path,
                dir: self.dir.clone(),
                expected: self.sha256,
                actual,
            })));
        }
        Ok(bytes)
    }
}

/// The digests of all regular files below `dir`, by their paths relative to `dir`. Symbolic links are skipped, so a file has a digest only
/// if the image itself holds the file's bytes.
pub(crate) fn digests_below(dir: &Path) -> io::Result<BTreeMap<String, Digest>> {
    let mut digests = BTreeMap::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(at) = pending.pop() {
        for entry in fs::read_dir(&at)? {
            let (entry, path) = entry.map(|entry| (entry.file_type(), entry.path()))?;
            let kind = entry?;
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_file() {
                let name = relative_name(&path, dir)?;
                digests.insert(name, Digest::of_reader(File::open(&path)?)?);
            }
        }
    }
    Ok(digests)
}

fn relative_name(path: &Path, dir: &Path) -> io::Result<String> {
    path.strip_prefix(dir)
        .ok()
        .and_then(Path::to_str)
        .map(str::to_owned)
        .ok_or_else(|| {
            let reason = format!("the file name {} is not UTF-8", path.display());
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path) -> CachedFile {
        CachedFile::new("debian-6.1", dir, "vmlinuz", Digest::of(b"kernel"))
    }

    #[test]
    fn file_with_the_recorded_digest_is_read() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("vmlinuz"), "kernel").expect("write");
        assert_eq!(file(dir.path()).read().expect("read"), b"kernel");
    }

    #[test]
    fn changed_file_is_refused_with_both_digests_and_a_remedy() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("vmlinuz"), "kerneL").expect("write");
        let text = file(dir.path()).read().expect_err("changed").to_string();
        for part in [
            "debian-6.1",
            &dir.path().join("vmlinuz").display().to_string(),
            &Digest::of(b"kernel").to_string(),
            &Digest::of(b"kerneL").to_string(),
            "hyprobe images fetch --refresh debian-6.1",
            &format!("remove {} ", dir.path().display()),
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn fifo_in_place_of_the_file_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("vmlinuz"), mode).expect("a FIFO");
        let error = file(dir.path()).read().expect_err("no file");
        let CachedFileError::Read { source, .. } = error else {
            panic!("{error}");
        };
        assert!(source.to_string().contains("FIFO"), "{source}");
    }

    #[test]
    fn missing_file_is_an_error_that_names_the_image() {
        let dir = tempfile::tempdir().expect("tempdir");
        let error = file(dir.path()).read().expect_err("missing");
        assert!(matches!(error, CachedFileError::Read { .. }));
        assert!(error.to_string().contains("debian-6.1"), "{error}");
    }

    #[test]
    fn digests_are_of_regular_files_at_any_depth() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::create_dir_all(dir.path().join("modules/kernel")).expect("mkdir");
        fs::write(dir.path().join("modules/kernel/a.ko"), "a").expect("write");
        fs::write(dir.path().join("vmlinuz"), "v").expect("write");
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("modules/build")).expect("link");
        let digests: Vec<_> = digests_below(dir.path())
            .expect("digests")
            .into_iter()
            .collect();
        assert_eq!(
            digests,
            [
                ("modules/kernel/a.ko".to_owned(), Digest::of(b"a")),
                ("vmlinuz".to_owned(), Digest::of(b"v")),
            ]
        );
    }
}
