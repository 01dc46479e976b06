//! Arranges the files of unpacked packages in an image's directory.

use std::fs;
use std::path::{Path, PathBuf};

use super::FetchError;
use crate::cache::CacheError;
use crate::cached_file::digests_below;
use crate::catalog::{ImageEntry, ImageKind};
use crate::directory;
use crate::image::{ImageRecord, MODULES, PackageRecord, main_file};

/// Minimum size of a real symbol table, which has megabytes. Debian ships a file with one sentence instead.
const SYSTEM_MAP_MIN_BYTES: u64 = 4096;

/// Makes the directory `image`, and moves the image's files from the unpacked packages into the directory. Returns the image's record.
pub(super) fn arrange(
    entry: &ImageEntry,
    unpacked: &Path,
    image: &Path,
    packages: Vec<PackageRecord>,
) -> Result<ImageRecord, FetchError> {
    let missing = |missing: &str| FetchError::Incomplete {
        packages: packages
            .iter()
            .map(|p| p.name.as_str())
            .collect::<Vec<_>>()
            .join(", "),
        missing: missing.to_owned(),
    };
    directory::make(image).map_err(CacheError::from)?;
    let main_name = main_file(entry.kind, &entry.name);
    let main = image.join(main_name);
    let release = match entry.kind {
        ImageKind::Program => {
            let file = entry.file.as_deref().unwrap_or(&entry.package);
            let found = [unpacked.join(file), unpacked.join("usr").join(file)]
                .into_iter()
                .find(|path| path.is_file())
                .ok_or_else(|| missing(file))?;
            rename(&found, &main)?;
            packages
                .first()
                .map(|package| package.version.clone())
                .unwrap_or_default()
        }
        ImageKind::Kernel => {
            let modules = [
                unpacked.join("usr/lib/modules"),
                unpacked.join("lib/modules"),
            ]
            .iter()
            .find_map(|dir| only_directory(dir))
            .ok_or_else(|| missing("lib/modules/<release>"))?;
            let release = modules
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let boot = |name: &str| unpacked.join(format!("boot/{name}-{release}"));
            let vmlinuz = [boot("vmlinuz"), modules.join("vmlinuz")]
                .into_iter()
                .find(|path| path.is_file())
                .ok_or_else(|| missing("vmlinuz"))?;
            rename(&vmlinuz, &main)?;
            let config = [boot("config"), modules.join("config")]
                .into_iter()
                .find(|path| path.is_file())
                .ok_or_else(|| missing("config"))?;
            rename(&config, &image.join("config"))?;
            let map = boot("System.map");
            if fs::metadata(&map).is_ok_and(|map| map.len() >= SYSTEM_MAP_MIN_BYTES) {
                rename(&map, &image.join("System.map"))?;
            }
            rename(&modules, &image.join(MODULES))?;
            release
        }
    };
    let mut files = digests_below(image).map_err(CacheError::io(image))?;
    let sha256 = files.remove(main_name).ok_or_else(|| missing(main_name))?;
    Ok(ImageRecord {
        release,
        sha256,
        packages,
        files: Some(files),
    })
}

fn rename(from: &Path, to: &Path) -> Result<(), CacheError> {
    fs::rename(from, to).map_err(CacheError::io(to))
}

/// The directory in `dir`, if `dir` has exactly one.
fn only_directory(dir: &Path) -> Option<PathBuf> {
    let mut found = fs::read_dir(dir).ok()?.filter_map(|entry| {
        entry
            .ok()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
    });
    found.next().filter(|_| found.next().is_none())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::catalog::Catalog;
    use crate::digest::Digest;

    #[test]
    fn record_has_the_digest_of_each_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let unpacked = dir.path().join("unpacked");
        for (file, text) in [
            ("boot/vmlinuz-6.1", "kernel"),
            ("boot/config-6.1", "config"),
            ("boot/System.map-6.1", "see the package of debug symbols"),
            ("lib/modules/6.1/kernel/kvm.ko", "kvm"),
        ] {
            let path = unpacked.join(file);
            fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
            fs::write(path, text).expect("write");
        }
        let catalog = Catalog::builtin();
        let entry = catalog.get("debian-6.1").expect("entry");
        let image = dir.path().join("image");
        let record = arrange(entry, &unpacked, &image, Vec::new()).expect("arrange");
        assert_eq!(record.release, "6.1");
        let mode = fs::metadata(&image).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(record.sha256, Digest::of(b"kernel"));
        let files: Vec<_> = record.files.into_iter().flatten().collect();
        assert_eq!(
            files,
            [
                ("config".to_owned(), Digest::of(b"config")),
                ("modules/kernel/kvm.ko".to_owned(), Digest::of(b"kvm")),
            ]
        );
    }

    #[test]
    fn the_modules_directory_must_be_the_only_one() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert_eq!(only_directory(dir.path()), None);
        fs::create_dir(dir.path().join("6.1")).expect("mkdir");
        assert_eq!(only_directory(dir.path()), Some(dir.path().join("6.1")));
        fs::create_dir(dir.path().join("6.2")).expect("mkdir");
        assert_eq!(only_directory(dir.path()), None);
    }
}
