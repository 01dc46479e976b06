//! An image in the cache, and its record.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cached_file::{CachedFile, CachedFileError};
use crate::catalog::ImageKind;
use crate::digest::Digest;
use crate::modules::{ModuleError, ModuleTree};

/// The directory of a kernel's modules, what a package has as `/lib/modules/<release>`.
pub(crate) const MODULES: &str = "modules";

/// A package that an image was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageRecord {
    /// The package.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the `.deb`, as the signed package list gives it.
    pub sha256: Digest,
}

/// What `image.json` holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The kernel's release (`uname -r`) or the program's package version.
    pub release: String,
    /// SHA-256 of the kernel or program itself.
    pub sha256: Digest,
    /// The packages that it was made from.
    pub packages: Vec<PackageRecord>,
    /// SHA-256 of each other file of the image, by its path in the image's directory. Records of
    /// earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<BTreeMap<String, Digest>>,
}

/// An image in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its name in the catalog.
    pub name: String,
    /// Kernel or program.
    pub kind: ImageKind,
    /// Where it is.
    pub dir: PathBuf,
    /// Which one it is.
    pub record: ImageRecord,
}

impl Image {
    /// The path of the image's main file, for messages. [`Image::main_file`] reads the file.
    pub fn path(&self) -> PathBuf {
        self.main_file().path()
    }

    /// The file that the image is for: a kernel's `vmlinuz`, or the executable.
    pub fn main_file(&self) -> CachedFile {
        self.file(main_file(self.kind, &self.name), self.record.sha256)
    }

    /// The kernel's release (`uname -r`) or the program's package version.
    pub fn release(&self) -> &str {
        &self.record.release
    }

    /// The kernel's modules.
    ///
    /// # Errors
    ///
    /// The record has no digests of modules, or `modules.builtin` cannot be read.
    pub fn modules(&self) -> Result<ModuleTree, ModuleError> {
        let Some(files) = &self.record.files else {
            return Err(ModuleError::NoDigests {
                image: self.name.clone(),
            });
        };
        let modules = files
            .iter()
            .filter(|(name, _)| Path::new(name).starts_with(MODULES))
            .map(|(name, sha256)| self.file(name, *sha256));
        let builtin = format!("{MODULES}/modules.builtin");
        let builtin = files
            .get(&builtin)
            .map(|sha256| self.file(&builtin, *sha256));
        ModuleTree::new(self.dir.join(MODULES), modules, builtin.as_ref())
    }

    /// Compares the digests of all files.
    ///
    /// # Errors
    ///
    /// A file cannot be read or has changed.
    pub(crate) fn verify(&self) -> Result<(), CachedFileError> {
        self.main_file().read()?;
        for (name, sha256) in self.record.files.iter().flatten() {
            self.file(name, *sha256).read()?;
        }
        Ok(())
    }

    fn file(&self, name: &str, sha256: Digest) -> CachedFile {
        CachedFile::new(&self.name, &self.dir, name, sha256)
    }
}

/// What the file that an image is for is called in its directory.
pub(crate) fn main_file(kind: ImageKind, name: &str) -> &str {
    match kind {
        ImageKind::Kernel => "vmlinuz",
        ImageKind::Program => name,
    }
}
