//! Fetches an image into the cache.
//!
//! Two fetches at the same time are safe: a fetch holds the suite's lock file from the look into the cache to the publication, so the
//! second fetch finds the image of the first fetch.

mod arrange;
mod error;

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::apt::{self, Package, Suite, ToolFailure};
use crate::cache::{CacheError, Store};
use crate::catalog::{Catalog, ImageEntry, ImageKind};
use crate::directory;
use crate::image::{Image, PackageRecord};
use crate::progress::{Progress, Report};

pub use error::FetchError;
use error::explain;

/// In the name of a debug file's package.
const RELEASE: &str = "{release}";

/// Whether an image in the cache is sufficient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// The image is sufficient: the fetch does not use the network.
    Cached,
    /// The fetch asks the suite for a newer image.
    Newest,
}

/// Fetches an image of the built-in catalog into the default cache, if the cache does not have the image yet.
///
/// # Errors
///
/// See [`FetchError`]; each error has a remedy.
pub fn fetch(name: &str, report: &Report<'_>) -> Result<Image, FetchError> {
    Store::open()?.fetch(name, Freshness::Cached, report)
}

/// The image in the default cache; `None` if the cache does not have the image. Does not use the network.
///
/// # Errors
///
/// The name is unknown or the cache is damaged.
pub fn cached(name: &str) -> Result<Option<Image>, FetchError> {
    Store::open()?.cached(name)
}

impl Store {
    /// The image in the cache; `None` if the cache does not have the image. Does not use the network.
    ///
    /// # Errors
    ///
    /// The name is unknown or the cache is damaged.
    pub fn cached(&self, name: &str) -> Result<Option<Image>, FetchError> {
        Ok(self.lookup(self.entry(name)?)?)
    }

    /// Returns the image, after a fetch if necessary. May take minutes; `report` receives each step.
    ///
    /// # Errors
    ///
    /// See [`FetchError`]; each error has a remedy. An error before the publication leaves the images in the cache unchanged.
    pub fn fetch(
        &self,
        name: &str,
        freshness: Freshness,
        report: &Report<'_>,
    ) -> Result<Image, FetchError> {
        let entry = self.entry(name)?;
        let kernel = match &entry.of {
            Some(kernel) => Some(self.fetch(kernel, Freshness::Cached, report)?),
            None => None,
        };
        // The debug file of a kernel that has been replaced is of no use.
        let fits = |image: &Image| kernel.as_ref().is_none_or(|kernel| image.is_of(kernel));
        let cached = match freshness {
            Freshness::Cached => self.lookup(entry)?.filter(fits),
            Freshness::Newest => None,
        };
        let cached = match cached {
            Some(image) if image.record.files.is_some() => return Ok(image),
            other => other,
        };
        let (dir, _lock) = match (self.lock(entry, report), cached) {
            (Ok(locked), _) => locked,
            // An image of an earlier version in a cache that the user can only read: the kernel has a digest.
            (Err(error), Some(image)) if error.is_read_only() => return Ok(image),
            (Err(error), _) => return Err(error.into()),
        };
        // A new fetch repairs damage.
        let present = self.lookup(entry).ok().flatten().filter(fits);
        match (freshness, present) {
            (Freshness::Cached, Some(image)) => {
                return match image.record.files {
                    Some(_) => Ok(image),
                    None => Ok(self.add_digests(image)?),
                };
            }
            (_, present) => {
                // Another process may have replaced the kernel before this one had the lock.
                let kernel = match kernel {
                    Some(kernel) => self.lookup(self.entry(&kernel.name)?)?,
                    None => None,
                };
                let suite = Suite::open(&entry.suite, dir.clone())?;
                let making = Making {
                    store: self,
                    entry,
                    package: package(entry, kernel.as_ref()),
                    kernel,
                    suite: &suite,
                    report,
                };
                making.make(present)?;
                suite.tidy().map_err(CacheError::io(&dir))?;
            }
        }
        let image = self.lookup(entry)?.ok_or_else(|| FetchError::Incomplete {
            packages: entry.package.clone(),
            missing: "image".to_owned(),
        })?;
        report(&Progress::Ready {
            image: &entry.name,
            release: image.release(),
        });
        Ok(image)
    }

    /// Makes and locks the directory of the suite of `entry`.
    fn lock(&self, entry: &ImageEntry, report: &Report<'_>) -> Result<(PathBuf, File), CacheError> {
        let dir = self.make_suite_dir(&entry.suite)?;
        let lock = lock_file(&dir).map_err(CacheError::io(&dir))?;
        acquire(&lock, || report(&Progress::Waiting { image: &entry.name }))
            .map_err(CacheError::io(&dir))?;
        Ok((dir, lock))
    }

    /// The debug file of the kernel of `release` in the cache; `None` if the cache does not have the file, or cannot be used.
    #[must_use]
    pub fn debug_file(&self, release: &str) -> Option<PathBuf> {
        let debug = |entry: &&ImageEntry| entry.kind == ImageKind::Debug;
        let entries = self.catalog().images().filter(debug);
        let mut cached = entries.filter_map(|entry| self.lookup(entry).ok().flatten());
        let found = cached.find(|image| image.release() == release)?;
        Some(found.path())
    }

    /// The name of the image that is the debug file of the kernel of `release`, if the cache has the kernel.
    #[must_use]
    pub fn debug_image(&self, release: &str) -> Option<String> {
        let is_of_kernel = |entry: &&ImageEntry| {
            let kernel = entry.of.as_ref().and_then(|of| self.catalog().get(of));
            let kernel = kernel.and_then(|kernel| self.lookup(kernel).ok().flatten());
            kernel.is_some_and(|kernel| kernel.release() == release)
        };
        let found = self.catalog().images().find(is_of_kernel)?;
        Some(found.name.clone())
    }

    /// The entry of the image `name` in the catalog.
    ///
    /// # Errors
    ///
    /// The name is unknown.
    pub fn entry(&self, name: &str) -> Result<&ImageEntry, FetchError> {
        self.catalog().get(name).ok_or_else(|| FetchError::Unknown {
            name: name.to_owned(),
            known: known_names(self.catalog()),
        })
    }
}

/// A fetch in progress, with the suite's lock held.
struct Making<'a> {
    store: &'a Store,
    entry: &'a ImageEntry,
    package: String,
    /// Of a debug file: the kernel.
    kernel: Option<Image>,
    suite: &'a Suite,
    report: &'a Report<'a>,
}

impl Making<'_> {
    /// Publishes the image, unless `present` is unchanged and made of the suite's present packages.
    fn make(&self, present: Option<Image>) -> Result<(), FetchError> {
        self.update()?;
        let packages = match self.entry.kind {
            // The parts on which the package depends are those of the kernel.
            ImageKind::Debug => self.debug_package().map(|package| vec![package]),
            ImageKind::Kernel | ImageKind::Program => self.suite.resolve(&self.package),
        };
        let packages = packages.map_err(|failure| {
            let (package, suite) = (self.package.clone(), self.entry.suite.clone());
            explain(failure, |detail| match self.entry.of.clone() {
                None => FetchError::Package {
                    package,
                    suite,
                    detail,
                },
                Some(kernel) => FetchError::DebugPackage {
                    package,
                    suite,
                    kernel,
                    detail,
                },
            })
        })?;
        let records: Vec<PackageRecord> = packages.iter().map(record_of).collect();
        if present.is_some_and(|image| is_up_to_date(&image, &records)) {
            return Ok(());
        }
        let images = self.store.make_images_dir().map_err(CacheError::from)?;
        let prefix = work_prefix(&self.entry.suite);
        remove_left_over(&images, &prefix).map_err(CacheError::io(&images))?;
        let work = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(directory::PRIVATE_MODE))
            .tempdir_in(&images)
            .map_err(CacheError::io(&images))?;
        let unpacked = work.path().join("unpacked");
        for package in &packages {
            self.download(package, work.path(), &unpacked)?;
        }
        let image = work.path().join("image");
        let record = arrange::arrange(self.entry, &unpacked, &image, records)?;
        Ok(self.store.publish(self.entry, &image, &record)?)
    }

    /// The package with the debug file of the same build as the kernel: a release may have several.
    fn debug_package(&self) -> Result<Package, ToolFailure> {
        let package = self.suite.show(&self.package)?;
        let kernel = self.kernel.as_ref();
        let of_kernel = kernel.is_none_or(|kernel| kernel.has_version(&package.version));
        match of_kernel {
            true => Ok(package),
            false => Err(ToolFailure::Exit {
                detail: format!(
                    "the suite has version {}, which is not the kernel's",
                    package.version
                ),
            }),
        }
    }

    fn update(&self) -> Result<(), FetchError> {
        let mirrors = apt::mirrors(self.store.catalog().archive())?;
        let mut first_detail = None;
        for mirror in &mirrors {
            let (image, suite) = (&self.entry.name, &self.entry.suite);
            (self.report)(&Progress::Listing {
                image,
                suite,
                mirror: &mirror.uri,
            });
            match self.suite.update(mirror) {
                Ok(()) => return Ok(()),
                Err(ToolFailure::Exit { detail }) => {
                    first_detail.get_or_insert(detail);
                }
                Err(ToolFailure::Start { program, source }) => {
                    return Err(FetchError::NoApt { program, source });
                }
            }
        }
        let tried: Vec<_> = mirrors.iter().map(|mirror| mirror.uri.as_str()).collect();
        Err(FetchError::Suite {
            suite: self.entry.suite.clone(),
            tried: tried.join(" and "),
            detail: first_detail.unwrap_or_default(),
        })
    }

    fn download(&self, package: &Package, work: &Path, unpacked: &Path) -> Result<(), FetchError> {
        let image = &self.entry.name;
        (self.report)(&Progress::Downloading {
            image,
            package: &package.name,
            version: &package.version,
            bytes: package.bytes,
        });
        let deb = work.join(format!("{}.deb", package.name));
        let name = || package.name.clone();
        self.suite.download(package, &deb).map_err(|failure| {
            explain(failure, |detail| FetchError::Download {
                package: name(),
                detail,
            })
        })?;
        (self.report)(&Progress::Unpacking {
            image,
            package: &package.name,
        });
        apt::unpack(&deb, unpacked).map_err(|failure| {
            explain(failure, |detail| FetchError::Unpack {
                package: name(),
                detail,
            })
        })
    }
}

/// The package of `entry`, which may be the debug file of `kernel`.
fn package(entry: &ImageEntry, kernel: Option<&Image>) -> String {
    let release = kernel.map_or("", Image::release);
    entry.package.replace(RELEASE, release)
}

/// Whether `image` is made of `packages`, and no file has changed since the publication. A record without digests cannot show changes.
fn is_up_to_date(image: &Image, packages: &[PackageRecord]) -> bool {
    image.record.packages == packages && image.record.files.is_some() && image.verify().is_ok()
}

fn record_of(package: &Package) -> PackageRecord {
    PackageRecord {
        name: package.name.clone(),
        version: package.version.clone(),
        sha256: package.sha256,
    }
}

/// Prefix of the directories for unfinished images of `suite`. Names of suites have no `~`, so no suite's prefix is the beginning of
/// another suite's prefix.
fn work_prefix(suite: &str) -> String {
    format!(".making-{suite}~")
}

fn known_names(catalog: &Catalog) -> String {
    catalog
        .images()
        .map(|image| image.name.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Removes the directories of killed fetches in `dir`. The caller holds the suite's lock, so no other process uses names with `prefix`.
fn remove_left_over(dir: &Path, prefix: &str) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The lock file in the suite's directory `dir`. A process working with the suite holds the lock.
fn lock_file(dir: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join("lock"))
}

/// Locks `file` until the drop of `file`. Calls `waiting` if another process holds the lock.
fn acquire(file: &File, waiting: impl FnOnce()) -> io::Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            waiting();
            file.lock()
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::digest::Digest;
    use crate::image::ImageRecord;

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path(), Catalog::builtin());
        let error = store.cached("debian-9").expect_err("unknown").to_string();
        assert!(error.contains("debian-5.10, debian-6.1"), "{error}");
    }

    #[test]
    fn the_lock_makes_the_second_one_wait() {
        let dir = tempfile::tempdir().expect("tempdir");
        let first = lock_file(dir.path()).expect("file");
        acquire(&first, || panic!("nobody else holds it")).expect("lock");
        let second = lock_file(dir.path()).expect("file");
        let (told, waits) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || acquire(&second, || told.send(()).expect("send")));
        waits.recv().expect("it waits");
        drop(first);
        waiting.join().expect("thread").expect("lock");
    }

    #[test]
    fn leftovers_of_a_killed_fetch_are_removed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let of = |suite: &str| work_prefix(suite) + "x";
        for name in [
            of("sid"),
            of("trixie"),
            of("sid-backports"),
            "debian-sid".to_owned(),
        ] {
            fs::create_dir_all(dir.path().join(name).join("unpacked")).expect("mkdir");
        }
        remove_left_over(dir.path(), &work_prefix("sid")).expect("remove");
        assert!(!dir.path().join(of("sid")).exists());
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 3);
    }

    #[test]
    fn debug_file_fits_a_kernel_of_its_release_and_version() {
        let image = |name: &str, release: &str, version: &str| Image {
            name: name.to_owned(),
            kind: ImageKind::Debug,
            dir: PathBuf::new(),
            record: ImageRecord {
                release: release.to_owned(),
                sha256: Digest::of(b""),
                packages: vec![PackageRecord {
                    name: name.to_owned(),
                    version: version.to_owned(),
                    sha256: Digest::of(b""),
                }],
                files: None,
            },
        };
        let kernel = image("linux-image-7.2", "7.2", "7.2.13-1");
        assert!(image("linux-image-7.2-dbg", "7.2", "7.2.13-1").is_of(&kernel));
        assert!(!image("linux-image-7.2-dbg", "7.2", "7.2.13-2").is_of(&kernel));
        assert!(!image("linux-image-7.1-dbg", "7.1", "7.2.13-1").is_of(&kernel));
    }

    #[test]
    fn changed_image_of_the_same_packages_is_not_up_to_date() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("busybox-static"), "program").expect("write");
        let record = |files| ImageRecord {
            release: "1".to_owned(),
            sha256: Digest::of(b"program"),
            packages: Vec::new(),
            files,
        };
        let mut image = Image {
            name: "busybox-static".to_owned(),
            kind: ImageKind::Program,
            dir: dir.path().to_owned(),
            record: record(Some(BTreeMap::new())),
        };
        assert!(is_up_to_date(&image, &[]));
        fs::write(image.path(), "changed").expect("write");
        assert!(!is_up_to_date(&image, &[]));
        fs::write(image.path(), "program").expect("write");
        image.record = record(None);
        assert!(!is_up_to_date(&image, &[]));
    }
}
