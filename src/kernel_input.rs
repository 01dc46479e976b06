//! The kernel that a run boots: a file named by the user, or a file of the image cache.

use std::path::PathBuf;

use guest_images::{CachedFile, CachedFileError};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use vmm::boot::{KernelError, KernelFile};

use crate::exit::{Exit, Failure};

/// Where the kernel is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelInput {
    /// A file named by the user: an ELF vmlinux or a bzImage.
    File(PathBuf),
    /// A file of the image cache; each read compares the digest.
    Cached(CachedFile),
}

/// Why the kernel cannot be read.
#[derive(Debug, Error)]
pub(crate) enum OpenKernelError {
    /// The file cannot be read or is not a kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The file of the image cache cannot be read or has changed.
    #[error(transparent)]
    Cached(#[from] CachedFileError),
}

impl Failure for OpenKernelError {
    fn exit(&self) -> Exit {
        match self {
            Self::Kernel(_) => Exit::Usage,
            Self::Cached(_) => Exit::HostCannot,
        }
    }
}

impl KernelInput {
    /// The file's path.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Cached(file) => file.path(),
        }
    }

    /// Reads the kernel. The digest of a cached file is compared for the returned bytes.
    ///
    /// # Errors
    ///
    /// See [`OpenKernelError`].
    pub(crate) fn open(&self) -> Result<KernelFile, OpenKernelError> {
        match self {
            Self::File(path) => Ok(KernelFile::open(path)?),
            Self::Cached(file) => {
                let name = file.path().display().to_string();
                Ok(KernelFile::from_bytes(&name, file.read()?)?)
            }
        }
    }
}

impl From<PathBuf> for KernelInput {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

#[cfg(test)]
mod tests {
    use guest_images::Digest;
    use serde_json::json;

    use super::*;

    #[test]
    fn cached_kernel_is_compared_with_its_digest_before_it_is_parsed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let elf = b"\x7fELF and the rest";
        std::fs::write(dir.path().join("vmlinuz"), elf).expect("write");
        let input: KernelInput = serde_json::from_value(json!({ "cached": {
            "image": "debian-6.1", "dir": dir.path(), "name": "vmlinuz",
            "sha256": Digest::of(elf),
        }}))
        .expect("input");
        assert_eq!(input.path(), dir.path().join("vmlinuz"));
        assert_eq!(input.open().expect("unchanged").bytes(), elf);

        std::fs::write(dir.path().join("vmlinuz"), b"\x7fELF and another").expect("write");
        let error = input.open().expect_err("changed");
        assert!(matches!(
            error,
            OpenKernelError::Cached(CachedFileError::Changed(_))
        ));
    }
}
