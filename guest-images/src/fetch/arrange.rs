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
        ImageKind::Debug => {
            let debug = unpacked.join("usr/lib/debug");
            let (release, found) = debug_file(&debug).ok_or_else(|| missing("vmlinux"))?;
            rename(&found, &main)?;
            release
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

/// The release and the file of the kernel below `debug`, which has symbolic links, too: `boot/vmlinux-RELEASE` or `lib/modules/RELEASE/vmlinux`.
fn debug_file(debug: &Path) -> Option<(String, PathBuf)> {
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|file| file.is_file());
    let release = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let modules = [debug.join("lib/modules"), debug.join("usr/lib/modules")];
    let modules = modules.iter().find_map(|dir| only_directory(dir))?;
    let release = release(&modules)?;
    let boot = debug.join(format!("boot/vmlinux-{release}"));
    let found = [boot, modules.join("vmlinux")]
        .into_iter()
        .find(|path| is_file(path))?;
    Some((release, found))
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
    fn debug_file_is_at_either_place_and_no_link() {
        for (file, link) in [
            ("boot/vmlinux-7.2", "lib/modules/7.2/vmlinux"),
            ("lib/modules/7.2/vmlinux", "boot/vmlinux-7.2"),
        ] {
            let dir = tempfile::tempdir().expect("tempdir");
            let debug = dir.path().join("unpacked/usr/lib/debug");
            for path in [file, link] {
                let path = debug.join(path);
                fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
            }
            fs::write(debug.join(file), "dwarf").expect("write");
            std::os::unix::fs::symlink("/etc/passwd", debug.join(link)).expect("a link");
            let catalog = Catalog::builtin();
            let entry = catalog.get("debian-sid-debug").expect("entry");
            let image = dir.path().join("image");
            let unpacked = dir.path().join("unpacked");
            let record = arrange(entry, &unpacked, &image, Vec::new()).expect("arrange");
            assert_eq!(
                (record.release.as_str(), record.sha256),
                ("7.2", Digest::of(b"dwarf"))
            );
            assert_eq!(
                fs::read_to_string(image.join("vmlinux")).expect("read"),
                "dwarf"
            );
        }
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
