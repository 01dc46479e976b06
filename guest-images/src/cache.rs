//! The cache: one directory per image, complete or absent.
//!
//! ```text
//! <root>/images/<name>/{vmlinuz,config,System.map,modules/…,image.json}   a kernel
//! <root>/images/<name>/{<name>,image.json}   a program
//! <root>/apt/<suite>/…          the private apt of a suite, and the lock
//! ```
//!
//! A fetch assembles an image in a directory with another name, and renames the directory: `image.json` exists exactly if all other files
//! exist. New directories have mode 0700. A directory writable by other users is refused.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use files::ReadError;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use thiserror::Error;

use crate::cached_file::digests_below;
use crate::catalog::{Catalog, ImageEntry};
use crate::directory::{self, DirectoryError};
use crate::image::{Image, ImageRecord, main_file};

const RECORD: &str = "image.json";
const IMAGES: &str = "images";

/// Why the cache could not be used.
#[derive(Debug, Error)]
pub enum CacheError {
    /// No directory can be derived from the environment.
    #[error("no place for the image cache: set HYPROBE_CACHE to a directory, or HOME")]
    NoHome,
    /// A directory of the cache cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A file of the cache could not be read or written.
    #[error("cannot use {path} in the image cache; set HYPROBE_CACHE to a writable directory")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An image's record could not be read.
    #[error("cannot read {path} in the image cache; fetch the image again with --refresh")]
    Read {
        /// The record.
        path: PathBuf,
        /// The cause.
        source: ReadError,
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

/// The maximum size of an image's record, which has a line for each module.
const MAX_RECORD_BYTES: u64 = 64 << 20;

impl CacheError {
    /// Whether the user can only read the cache.
    pub(crate) fn is_read_only(&self) -> bool {
        let (Self::Directory(DirectoryError::Io { source, .. }) | Self::Io { source, .. }) = self
        else {
            return false;
        };
        matches!(
            source.kind(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
        )
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// The cache, and the catalog of its images.
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
    /// None of the variables is set.
    pub fn open() -> Result<Self, CacheError> {
        let root = root_from(|name| std::env::var_os(name)).ok_or(CacheError::NoHome)?;
        Ok(Self::at(root, Catalog::builtin()))
    }

    /// The store in the directory `root`. The first fetch makes the directory.
    pub fn at(root: impl Into<PathBuf>, catalog: Catalog) -> Self {
        Self {
            root: root.into(),
            catalog,
        }
    }

    /// The catalog of images to fetch.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The cache's directory; other build artefacts may live beside the images.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the finished images.
    fn images_dir(&self) -> PathBuf {
        self.root.join(IMAGES)
    }

    /// Makes the directory of the finished images.
    pub(crate) fn make_images_dir(&self) -> Result<PathBuf, DirectoryError> {
        directory::make_below(&self.root, Path::new(IMAGES))
    }

    /// Makes the directory of the suite `name`.
    pub(crate) fn make_suite_dir(&self, name: &str) -> Result<PathBuf, DirectoryError> {
        directory::make_below(&self.root, &Path::new("apt").join(name))
    }

    /// The image of `entry`; `None` if the cache does not have the image.
    pub(crate) fn lookup(&self, entry: &ImageEntry) -> Result<Option<Image>, CacheError> {
        directory::check_below(&self.root, &Path::new(IMAGES).join(&entry.name))?;
        let dir = self.images_dir().join(&entry.name);
        let path = dir.join(RECORD);
        directory::check_file(&path)?;
        let text = match files::read(&path, MAX_RECORD_BYTES) {
            Ok(text) => text,
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(source) => return Err(CacheError::Read { path, source }),
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

    /// Adds the digests of files to the record of `image`, which an earlier version published.
    /// The present files are trusted, because no digests exist for a comparison. The caller holds the suite's lock.
    pub(crate) fn add_digests(&self, mut image: Image) -> Result<Image, CacheError> {
        let mut files = digests_below(&image.dir).map_err(CacheError::io(&image.dir))?;
        files.remove(RECORD);
        files.remove(main_file(image.kind, &image.name));
        image.record.files = Some(files);
        let new = image.dir.join(format!("{RECORD}.new"));
        write_record(&new, &image.record)?;
        let path = image.dir.join(RECORD);
        fs::rename(&new, &path).map_err(CacheError::io(&path))?;
        Ok(image)
    }

    /// Moves the finished directory `from` to the place of the image of `entry`, and replaces an older image. The caller holds the suite's
    /// lock.
    pub(crate) fn publish(
        &self,
        entry: &ImageEntry,
        from: &Path,
        record: &ImageRecord,
    ) -> Result<(), CacheError> {
        write_record(&from.join(RECORD), record)?;
        let target = self.images_dir().join(&entry.name);
        // With an exchange, the name has an image at each moment. The caller removes the older image with `from`. NFS cannot exchange names,
        // and the system-call filters of some containers refuse the exchange.
        match renameat_with(CWD, from, CWD, &target, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            Err(_) => replace(from, &target),
        }
    }
}

/// Gives the directory `from` the name `target`, in two steps if `target` exists. If the second step fails, the older directory gets its name
/// back.
fn replace(from: &Path, target: &Path) -> Result<(), CacheError> {
    let retired = from.with_extension("retired");
    match fs::rename(target, &retired) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(CacheError::io(target)(error));
        }
        Ok(()) | Err(_) => {}
    }
    fs::rename(from, target).map_err(|error| {
        // The first error is the one to report.
        let _ = fs::rename(&retired, target);
        CacheError::io(target)(error)
    })
}

fn write_record(path: &Path, record: &ImageRecord) -> Result<(), CacheError> {
    let text = serde_json::to_vec_pretty(record).map_err(|source| CacheError::Record {
        path: path.to_owned(),
        source,
    })?;
    // With this mode, other users cannot write to the file, even if the umask is 0.
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(path);
    file.and_then(|mut file| file.write_all(&text))
        .map_err(CacheError::io(path))
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
    use crate::digest::Digest;
    use crate::image::MODULES;
    use crate::modules::ModuleError;

    const KVM: &str = "modules/kvm.ko";
    const KVM_TEXT: &str = "module";

    /// The record of an image with the release as the contents of `vmlinuz`.
    fn record(release: &str, modules: &[(&str, &str)]) -> ImageRecord {
        let digest = |(name, text): &(&str, &str)| (name.to_string(), Digest::of(text.as_bytes()));
        ImageRecord {
            release: release.into(),
            sha256: Digest::of(release.as_bytes()),
            packages: Vec::new(),
            files: Some(modules.iter().map(digest).collect()),
        }
    }

    fn publish(store: &Store, release: &str) {
        let entry = store.catalog().get("debian-6.1").expect("entry");
        store.make_images_dir().expect("mkdir");
        let work = tempfile::tempdir_in(store.images_dir()).expect("tempdir");
        let made = work.path().join("image");
        directory::make(&made).expect("mkdir");
        fs::write(made.join("vmlinuz"), release).expect("write");
        fs::create_dir(made.join(MODULES)).expect("mkdir");
        fs::write(made.join(KVM), KVM_TEXT).expect("write");
        store
            .publish(entry, &made, &record(release, &[(KVM, KVM_TEXT)]))
            .expect("publish");
    }

    fn lookup(store: &Store) -> Option<Image> {
        let entry = store.catalog().get("debian-6.1").expect("entry");
        store.lookup(entry).expect("lookup")
    }

    #[test]
    fn changed_kernel_or_module_is_refused_when_it_is_read() {
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path().join("cache"), Catalog::builtin());
        publish(&store, "6.1.0-1");
        let image = lookup(&store).expect("present");
        image.verify().expect("unchanged");
        let kvm = image.modules().expect("modules").get("kvm").expect("kvm");
        assert_eq!(kvm.read().expect("read"), KVM_TEXT.as_bytes());

        fs::write(image.dir.join(KVM), "other").expect("write");
        assert!(kvm.read().is_err() && image.verify().is_err());
        fs::write(image.dir.join(KVM), KVM_TEXT).expect("write");
        image.verify().expect("as it was");
        fs::write(image.path(), "other").expect("write");
        assert!(image.main_file().read().is_err() && image.verify().is_err());
    }

    #[test]
    fn file_without_a_digest_in_the_record_is_no_module() {
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path().join("cache"), Catalog::builtin());
        publish(&store, "6.1.0-1");
        let image = lookup(&store).expect("present");
        fs::write(image.dir.join("modules/added.ko"), "added").expect("write");
        let modules = image.modules().expect("modules");
        assert_eq!(modules.names().collect::<Vec<_>>(), ["kvm"]);
    }

    #[test]
    fn record_of_an_earlier_version_gets_digests() {
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path().join("cache"), Catalog::builtin());
        publish(&store, "6.1.0-1");
        let mut old = lookup(&store).expect("present");
        let published = old.clone();
        old.record.files = None;
        write_record(&old.dir.join(RECORD), &old.record).expect("write");

        let old = lookup(&store).expect("present");
        assert_eq!(old.record.files, None);
        assert_eq!(old.main_file().read().expect("kernel"), b"6.1.0-1");
        assert!(matches!(old.modules(), Err(ModuleError::NoDigests { .. })));
        store.add_digests(old).expect("upgrade");
        assert_eq!(lookup(&store), Some(published));
    }

    #[test]
    fn published_image_is_found_and_replaced() {
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path().join("cache"), Catalog::builtin());
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
    fn directory_is_replaced_with_and_without_an_older_one() {
        let root = tempfile::tempdir().expect("tempdir");
        let target = root.path().join("image");
        for name in ["older", "newer"] {
            let from = root.path().join("made");
            fs::create_dir_all(from.join(name)).expect("mkdir");
            replace(&from, &target).expect("replaced");
            assert!(target.join(name).exists() && !from.exists());
        }
        assert!(!target.join("older").exists());
    }

    #[test]
    fn failed_replacement_leaves_the_older_directory() {
        let root = tempfile::tempdir().expect("tempdir");
        let target = root.path().join("image");
        fs::create_dir_all(target.join("older")).expect("mkdir");
        assert!(replace(&root.path().join("missing"), &target).is_err());
        assert!(target.join("older").exists());
    }

    #[test]
    fn image_directory_that_others_can_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path().join("cache"), Catalog::builtin());
        publish(&store, "6.1.0-1");
        let image = lookup(&store).expect("present");
        let entry = store.catalog().get("debian-6.1").expect("entry");
        for dir in [&image.dir, &store.images_dir(), &store.root] {
            let before = fs::metadata(dir).expect("metadata").permissions();
            fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("chmod");
            let error = store.lookup(entry).expect_err("writable by others");
            assert!(matches!(error, CacheError::Directory(_)), "{error}");
            fs::set_permissions(dir, before).expect("chmod");
        }
        assert_eq!(lookup(&store), Some(image));
    }

    #[test]
    fn reader_during_publications_gets_a_complete_image_or_none() {
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path().join("cache"), Catalog::builtin());
        publish(&store, "first");
        let publisher = std::thread::spawn({
            let store = store.clone();
            move || (0..200).for_each(|number| publish(&store, &format!("release {number}")))
        });
        let mut complete = 0_u32;
        while !publisher.is_finished() {
            let Some(image) = lookup(&store) else {
                continue;
            };
            // Between the record and the kernel the image may be replaced; then the digest differs.
            if let Ok(kernel) = image.main_file().read() {
                assert_eq!(kernel, image.release().as_bytes());
                complete += 1;
            }
        }
        publisher.join().expect("publisher");
        assert!(complete > 0);
        assert_eq!(lookup(&store).expect("present").release(), "release 199");
    }

    #[test]
    fn damaged_record_is_reported() {
        let root = tempfile::tempdir().expect("tempdir");
        let store = Store::at(root.path().join("cache"), Catalog::builtin());
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
