//! The cache: one directory per image, complete or absent.
//!
//! ```text
//! <root>/images/<name>/{vmlinuz,config,System.map,modules/…,image.json}   a kernel
//! <root>/images/<name>/{<name>,image.json}   a program
//! <root>/apt/<suite>/…          the private apt of that suite, and its lock
//! ```
//!
//! An image is put together in a directory of another name and renamed, so that `image.json`
//! is there exactly when all the rest is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::catalog::{Catalog, ImageEntry, ImageKind};
use crate::modules::{ModuleError, ModuleTree};

const RECORD: &str = "image.json";

/// Why the cache could not be used.
#[derive(Debug, Error)]
pub enum CacheError {
    /// No directory can be derived from the environment.
    #[error("no place for the image cache: set HYPROBE_CACHE to a directory, or HOME")]
    NoHome,
    /// A file of the cache could not be read or written.
    #[error("cannot use {path} in the image cache; set HYPROBE_CACHE to a writable directory")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An image's record is damaged.
    #[error("{path} is damaged; fetch the image again with --refresh")]
    Record {
        /// The record.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
}

impl CacheError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// A package that an image was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageRecord {
    /// The package.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the `.deb`, in hex, as the signed package list gives it.
    pub sha256: String,
}

/// What `image.json` holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The kernel's release (`uname -r`) or the program's package version.
    pub release: String,
    /// SHA-256 of the kernel or program itself, in hex.
    pub sha256: String,
    /// The packages that it was made from.
    pub packages: Vec<PackageRecord>,
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
    /// The file that the image is for: a kernel's `vmlinuz`, or the executable.
    pub fn path(&self) -> PathBuf {
        self.dir.join(main_file(self.kind, &self.name))
    }

    /// The kernel's release (`uname -r`) or the program's package version.
    pub fn release(&self) -> &str {
        &self.record.release
    }

    /// The kernel's build configuration.
    pub fn config(&self) -> PathBuf {
        self.dir.join("config")
    }

    /// The kernel's symbol table, where the package has a real one. Debian's has none.
    pub fn system_map(&self) -> Option<PathBuf> {
        Some(self.dir.join("System.map")).filter(|path| path.is_file())
    }

    /// The directory of the kernel's modules.
    pub fn modules_dir(&self) -> PathBuf {
        self.dir.join("modules")
    }

    /// The kernel's modules.
    ///
    /// # Errors
    ///
    /// The module directory cannot be read.
    pub fn modules(&self) -> Result<ModuleTree, ModuleError> {
        ModuleTree::open(&self.modules_dir())
    }
}

/// What the file that an image is for is called in its directory.
pub(crate) fn main_file(kind: ImageKind, name: &str) -> &str {
    match kind {
        ImageKind::Kernel => "vmlinuz",
        ImageKind::Program => name,
    }
}

/// The cache and the catalog of what belongs into it.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    catalog: Catalog,
}

impl Store {
    /// The store at `$HYPROBE_CACHE`, `$XDG_CACHE_HOME/hyprobe` or `~/.cache/hyprobe`, with the
    /// built-in catalog.
    ///
    /// # Errors
    ///
    /// None of these variables is set.
    pub fn open() -> Result<Self, CacheError> {
        let root = root_from(|name| std::env::var_os(name)).ok_or(CacheError::NoHome)?;
        Ok(Self::at(root, Catalog::builtin()))
    }

    /// The store in the directory `root`, which is made when something is fetched.
    pub fn at(root: impl Into<PathBuf>, catalog: Catalog) -> Self {
        Self {
            root: root.into(),
            catalog,
        }
    }

    /// What can be fetched.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The cache's directory; other build artefacts may live beside the images.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the finished images.
    pub(crate) fn images_dir(&self) -> PathBuf {
        self.root.join("images")
    }

    /// The image of `entry` if it is in the cache.
    pub(crate) fn lookup(&self, entry: &ImageEntry) -> Result<Option<Image>, CacheError> {
        let dir = self.images_dir().join(&entry.name);
        let path = dir.join(RECORD);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CacheError::Io { path, source }),
        };
        let record =
            serde_json::from_slice(&text).map_err(|source| CacheError::Record { path, source })?;
        Ok(Some(Image {
            name: entry.name.clone(),
            kind: entry.kind,
            dir,
            record,
        }))
    }

    /// Puts the finished directory `from` where the image of `entry` belongs, in place of an
    /// older one. The caller holds the suite's lock.
    pub(crate) fn publish(
        &self,
        entry: &ImageEntry,
        from: &Path,
        record: &ImageRecord,
    ) -> Result<(), CacheError> {
        let path = from.join(RECORD);
        let text = serde_json::to_vec_pretty(record).map_err(|source| CacheError::Record {
            path: path.clone(),
            source,
        })?;
        fs::write(&path, text).map_err(CacheError::io(&path))?;
        let target = self.images_dir().join(&entry.name);
        let retired = from.with_extension("retired");
        match fs::rename(&target, &retired) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(CacheError::Io {
                    path: target,
                    source,
                });
            }
        }
        fs::rename(from, &target).map_err(CacheError::io(&target))
    }
}

fn root_from(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let set = |name: &str| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("HYPROBE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("hyprobe")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/hyprobe")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(release: &str) -> ImageRecord {
        ImageRecord {
            release: release.into(),
            sha256: "00".into(),
            packages: Vec::new(),
        }
    }

    fn publish(store: &Store, release: &str) {
        let entry = store.catalog().get("debian-6.1").expect("entry");
        fs::create_dir_all(store.images_dir()).expect("mkdir");
        let work = tempfile::tempdir_in(store.images_dir()).expect("tempdir");
        let made = work.path().join("image");
        fs::create_dir(&made).expect("mkdir");
        fs::write(made.join("vmlinuz"), release).expect("write");
        store
            .publish(entry, &made, &record(release))
            .expect("publish");
    }

    #[test]
    fn what_is_published_is_found_and_replaced() {
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path(), Catalog::builtin());
        let entry = store.catalog().get("debian-6.1").expect("entry").clone();
        assert_eq!(store.lookup(&entry).expect("lookup"), None);
        for release in ["6.1.0-1", "6.1.0-2"] {
            publish(&store, release);
            let image = store.lookup(&entry).expect("lookup").expect("present");
            assert_eq!(image.release(), release);
            assert_eq!(fs::read(image.path()).expect("read"), release.as_bytes());
        }
        let left: Vec<_> = fs::read_dir(store.images_dir()).expect("list").collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn a_damaged_record_says_so() {
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path(), Catalog::builtin());
        publish(&store, "6.1.0-1");
        fs::write(store.images_dir().join("debian-6.1/image.json"), "{").expect("write");
        let entry = store.catalog().get("debian-6.1").expect("entry");
        assert!(matches!(
            store.lookup(entry),
            Err(CacheError::Record { .. })
        ));
    }

    #[test]
    fn the_environment_decides_the_place() {
        let with = |set: &[(&str, &str)]| {
            let set: Vec<_> = set.iter().map(|(k, v)| (k.to_string(), v.into())).collect();
            root_from(move |name| set.iter().find(|(k, _)| k == name).map(|(_, v)| v).cloned())
        };
        let all = [
            ("HYPROBE_CACHE", "/c"),
            ("XDG_CACHE_HOME", "/x"),
            ("HOME", "/h"),
        ];
        assert_eq!(with(&all), Some("/c".into()));
        assert_eq!(with(&all[1..]), Some("/x/hyprobe".into()));
        assert_eq!(with(&all[2..]), Some("/h/.cache/hyprobe".into()));
        assert_eq!(with(&[("HOME", "")]), None);
    }
}
