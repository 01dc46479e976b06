//! An image in the cache, and the record of the image.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cached_file::{CachedFile, CachedFileError};
use crate::catalog::ImageKind;
use crate::digest::Digest;
use crate::modules::{ModuleError, ModuleTree};

/// The directory of a kernel's modules: `/lib/modules/<release>` of the package.
pub(crate) const MODULES: &str = "modules";

/// A package used to make an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageRecord {
    /// The package.
    pub name: String,
    /// The package's version.
    pub version: String,
    /// SHA-256 of the `.deb`, from the signed package list.
    pub sha256: Digest,
}

/// The contents of `image.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The kernel's release (`uname -r`), also of a debug file, or the program's package version.
    pub release: String,
    /// SHA-256 of the kernel or program.
    pub sha256: Digest,
    /// The packages used to make the image.
    pub packages: Vec<PackageRecord>,
    /// SHA-256 of each other file of the image, by the path in the image's directory. Records of earlier versions have no digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<BTreeMap<String, Digest>>,
}

/// An image in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The image's name in the catalog.
    pub name: String,
    /// Kernel or program.
    pub kind: ImageKind,
    /// The image's directory.
    pub dir: PathBuf,
    /// The image's record.
    pub record: ImageRecord,
}

impl Image {
    /// The path of the image's main file, for messages. [`Image::main_file`] reads the file. A debug file is read in parts, without its digest: its
    /// build-id must be the kernel's.
    pub fn path(&self) -> PathBuf {
        self.main_file().path()
    }

    /// The main file of the image: a kernel's `vmlinuz`, the executable, or the `vmlinux` with debug information.
    pub fn main_file(&self) -> CachedFile {
        self.file(main_file(self.kind, &self.name), self.record.sha256)
    }

    /// The kernel's release (`uname -r`) or the program's package version.
    pub fn release(&self) -> &str {
        &self.record.release
    }

    /// Whether this debug file belongs to `kernel`: the release and the version of the package are equal.
    pub(crate) fn is_of(&self, kernel: &Self) -> bool {
        let mut packages = self.record.packages.iter();
        self.release() == kernel.release()
            && packages.all(|package| kernel.has_version(&package.version))
    }

    /// Whether a package of the image has the version.
    pub(crate) fn has_version(&self, version: &str) -> bool {
        let mut packages = self.record.packages.iter();
        packages.any(|package| package.version == version)
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

/// The name of an image's main file in the image's directory.
pub(crate) fn main_file(kind: ImageKind, name: &str) -> &str {
    match kind {
        ImageKind::Kernel => "vmlinuz",
        ImageKind::Program => name,
        ImageKind::Debug => "vmlinux",
    }
}
