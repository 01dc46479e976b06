//! Directories of the cache: private to their owner.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The mode of directories of the cache.
pub(crate) const PRIVATE_MODE: u32 = 0o700;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const PERMISSION_BITS: u32 = 0o7777;

/// Why a directory of the cache cannot be used.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// The directory could not be made or looked at.
    #[error(
        "cannot use the directory {path} of the image cache; set HYPROBE_CACHE to a writable directory"
    )]
    Io {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Users other than the owner may write to the directory, or to an image's record.
    #[error(
        "other users can write to {} of the image cache (mode {mode:04o}), so its \
         images cannot be trusted; if its contents are yours, run `chmod -R go-w {}`, otherwise remove \
         it or set HYPROBE_CACHE to another directory", .path.display(), .path.display()
    )]
    WritableByOthers {
        /// The directory or file.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
    /// The directory, or an image's record, is another user's.
    #[error(
        "{path} of the image cache belongs to the user {owner}, who could replace the images; \
         remove it or set HYPROBE_CACHE to another directory"
    )]
    Foreign {
        /// The directory or file.
        path: PathBuf,
        /// The user's number.
        owner: u32,
    },
    /// The path leads to something else.
    #[error("{path} is in the place of a directory of the image cache; remove it")]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
}

/// Makes the directories `relative` below `root`, and `root` itself, with mode 0700. Existing directories keep their modes.
///
/// # Errors
///
/// A directory cannot be made, or an existing directory is not trusted.
pub(crate) fn make_below(root: &Path, relative: &Path) -> Result<PathBuf, DirectoryError> {
    make(root)?;
    let mut path = root.to_owned();
    for part in relative {
        path.push(part);
        make(&path)?;
    }
    Ok(path)
}

/// Makes the directory `path` and its parents with mode 0700, and checks `path`.
///
/// # Errors
///
/// See [`DirectoryError`].
pub(crate) fn make(path: &Path) -> Result<(), DirectoryError> {
    DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE_MODE)
        .create(path)
        .map_err(io_error(path))?;
    check(path)
}

/// Refuses directories that other users own or can write to: checks `root`, and each directory from `root` to `relative`. Missing
/// directories are accepted.
///
/// # Errors
///
/// See [`DirectoryError`].
pub(crate) fn check_below(root: &Path, relative: &Path) -> Result<(), DirectoryError> {
    let mut path = root.to_owned();
    check_if_present(&path)?;
    for part in relative {
        path.push(part);
        check_if_present(&path)?;
    }
    Ok(())
}

fn check_if_present(path: &Path) -> Result<(), DirectoryError> {
    match check(path) {
        Err(DirectoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        result => result,
    }
}

fn check(path: &Path) -> Result<(), DirectoryError> {
    let metadata = fs::metadata(path).map_err(io_error(path))?;
    if !metadata.is_dir() {
        return Err(DirectoryError::NotADirectory {
            path: path.to_owned(),
        });
    }
    check_trusted(path, &metadata)
}

/// Refuses the file `path` if other users can change the file. A missing file is accepted.
///
/// # Errors
///
/// See [`DirectoryError`].
pub(crate) fn check_file(path: &Path) -> Result<(), DirectoryError> {
    match fs::metadata(path) {
        Ok(metadata) => check_trusted(path, &metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error(path)(error)),
    }
}

/// Whether the owner is trusted: the user or root. Root can change all files anyway.
fn is_trusted(owner: u32, user: u32) -> bool {
    owner == user || owner == 0
}

fn check_trusted(path: &Path, metadata: &fs::Metadata) -> Result<(), DirectoryError> {
    let mode = metadata.permissions().mode() & PERMISSION_BITS;
    let owner = metadata.uid();
    if !is_trusted(owner, rustix::process::geteuid().as_raw()) {
        return Err(DirectoryError::Foreign {
            path: path.to_owned(),
            owner,
        });
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(DirectoryError::WritableByOthers {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    move |source| DirectoryError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        let metadata = fs::metadata(path).expect("metadata");
        metadata.permissions().mode() & PERMISSION_BITS
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn new_directories_are_private_and_old_ones_keep_their_mode() {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("a/cache");
        fs::create_dir(dir.path().join("a")).expect("mkdir");
        set_mode(&dir.path().join("a"), 0o755);
        let path = make_below(&root, Path::new("apt/sid")).expect("make");
        assert_eq!(path, root.join("apt/sid"));
        for made in [&root, &root.join("apt"), &path] {
            assert_eq!(mode(made), 0o700, "{}", made.display());
        }
        assert_eq!(mode(&dir.path().join("a")), 0o755);

        set_mode(&root, 0o755);
        make_below(&root, Path::new("apt/sid")).expect("again");
        assert_eq!(mode(&root), 0o755);
    }

    #[test]
    fn directory_that_others_can_write_to_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("cache");
        let images = make_below(&root, Path::new("images")).expect("make");
        for (path, bits) in [(&root, 0o720), (&root, 0o702), (&images, 0o770)] {
            set_mode(path, bits);
            let refused = [
                check_below(&root, Path::new("images/debian-6.1")),
                make_below(&root, Path::new("images")).map(drop),
            ];
            for error in refused.map(|result| result.expect_err("writable by others")) {
                let text = error.to_string();
                assert!(
                    text.contains(&format!("chmod -R go-w {}", path.display())),
                    "{text}"
                );
                assert!(text.contains(&format!("{bits:04o}")), "{text}");
            }
            set_mode(path, 0o755);
            check_below(&root, Path::new("images/debian-6.1")).expect("readable is accepted");
        }
    }

    #[test]
    fn file_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("image.json");
        check_file(&path).expect("absent");
        fs::write(&path, "{}").expect("write");
        set_mode(&path, 0o644);
        check_file(&path).expect("readable is accepted");
        set_mode(&path, 0o664);
        let error = check_file(&path).expect_err("writable by others");
        assert!(matches!(error, DirectoryError::WritableByOthers { .. }));
    }

    #[test]
    fn only_the_user_and_root_are_trusted() {
        assert!(is_trusted(1000, 1000) && is_trusted(0, 1000) && is_trusted(0, 0));
        assert!(!is_trusted(1001, 1000) && !is_trusted(1000, 0));
    }

    #[test]
    fn directory_that_does_not_exist_is_accepted() {
        let dir = tempfile::tempdir().expect("tempdir");
        check_below(&dir.path().join("cache"), Path::new("images")).expect("absent");
    }

    #[test]
    fn file_in_the_place_of_a_directory_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("cache");
        make(&root).expect("make");
        fs::write(root.join("images"), "").expect("write");
        assert!(matches!(
            check_below(&root, Path::new("images")),
            Err(DirectoryError::NotADirectory { .. })
        ));
    }
}
