//! The directory of a private apt, chosen to keep apt's sandbox on.
//!
//! If root starts apt, apt's downloads run as another user, `_apt` by default. apt gives up the sandbox, with a notice only, if the
//! sandbox's user cannot reach a file's directory. The cache's directories are private, and often below `/root`. Therefore, for root, apt
//! works in a temporary directory that other users can enter, and downloads into a directory owned by the sandbox's user. For any other
//! user, apt works in the cache and has no sandbox.

use std::env;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use thiserror::Error;

use crate::directory::{self, DirectoryError};

const PREFIX: &str = "hyprobe-apt-";
const ENTER_ONLY_MODE: u32 = 0o711;
const ENTER_BY_OTHERS: u32 = 0o001;
/// The necessary parts of apt's directory.
const PARTS: [&str; 6] = [
    "lists",
    "lists/partial",
    "cache",
    "cache/archives",
    "cache/archives/partial",
    "none",
];

/// Reason for a missing directory for apt.
#[derive(Debug, Error)]
pub enum WorkDirError {
    /// A directory of the cache cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// No temporary directory is open to the sandbox's user.
    #[error(
        "apt, started by root, downloads as the user {user}, and that user can enter none of \
         {tried}; set TMPDIR to a directory that all users can enter"
    )]
    Closed {
        /// The sandbox's user.
        user: String,
        /// The directories.
        tried: String,
    },
    /// The temporary directory cannot be made.
    #[error("cannot make a directory in {path} for apt to download into as the user {user}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// The sandbox's user.
        user: String,
        /// The cause.
        source: io::Error,
    },
}

/// The user of apt's downloads if root starts apt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SandboxUser {
    pub(super) name: String,
    pub(super) uid: u32,
}

/// The directory of a private apt.
#[derive(Debug)]
pub(super) enum WorkDir {
    /// A directory of the cache, kept for the next fetch.
    Cache(PathBuf),
    /// A directory that the sandbox's user can enter. The drop of the value removes the directory; a killed process leaves it.
    Sandbox { dir: TempDir, user: SandboxUser },
}

impl WorkDir {
    /// The directory `dir` of the cache.
    pub(super) fn in_cache(dir: PathBuf) -> Result<Self, WorkDirError> {
        for part in PARTS {
            directory::make_below(&dir, Path::new(part))?;
        }
        Ok(Self::Cache(dir))
    }

    /// A temporary directory that `user` can enter.
    pub(super) fn for_sandbox(user: SandboxUser) -> Result<Self, WorkDirError> {
        let candidates = [env::temp_dir(), "/var/tmp".into(), "/tmp".into()];
        let Some(base) = candidates.iter().find(|dir| all_can_enter(dir)) else {
            return Err(WorkDirError::Closed {
                user: user.name,
                tried: candidates.map(|dir| dir.display().to_string()).join(", "),
            });
        };
        match make_open(base) {
            Ok(dir) => Ok(Self::Sandbox { dir, user }),
            Err(source) => Err(WorkDirError::Io {
                path: base.clone(),
                user: user.name,
                source,
            }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Cache(path) => path,
            Self::Sandbox { dir, .. } => dir.path(),
        }
    }

    /// Whether apt has a sandbox, which must stay on.
    pub(super) fn has_sandbox(&self) -> bool {
        matches!(self, Self::Sandbox { .. })
    }

    /// Makes a directory for one download. Only the downloading user can use the directory.
    pub(super) fn download_dir(&self) -> io::Result<TempDir> {
        let dir = tempfile::Builder::new()
            .prefix("download-")
            .permissions(Permissions::from_mode(directory::PRIVATE_MODE))
            .tempdir_in(self.path())?;
        if let Self::Sandbox { user, .. } = self {
            chown(dir.path(), Some(user.uid), None)?;
        }
        Ok(dir)
    }
}

fn make_open(base: &Path) -> io::Result<TempDir> {
    let mode = || Permissions::from_mode(ENTER_ONLY_MODE);
    let dir = tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(mode())
        .tempdir_in(base)?;
    // The umask may have taken more away.
    let open = |path: &Path| fs::set_permissions(path, mode());
    open(dir.path())?;
    for part in PARTS {
        let path = dir.path().join(part);
        DirBuilder::new().mode(ENTER_ONLY_MODE).create(&path)?;
        // apt itself makes the sandbox's user the owner of the `partial` directories.
        open(&path)?;
    }
    Ok(dir)
}

/// Whether every user can enter `dir` and all parent directories.
fn all_can_enter(dir: &Path) -> bool {
    let open = |dir: &Path| {
        fs::metadata(dir).is_ok_and(|metadata| {
            metadata.is_dir() && metadata.permissions().mode() & ENTER_BY_OTHERS != 0
        })
    };
    fs::canonicalize(dir).is_ok_and(|dir| dir.ancestors().all(open))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("metadata").mode() & 0o7777
    }

    /// The sandbox's user: `_apt` if root runs the test, otherwise the test's own user, since only
    /// root can give directories away.
    fn user() -> SandboxUser {
        let own = rustix::process::geteuid();
        SandboxUser {
            name: "_apt".to_owned(),
            uid: if own.is_root() { 42 } else { own.as_raw() },
        }
    }

    #[test]
    fn sandbox_user_can_enter_the_work_directory_and_owns_the_download_directory() {
        let work = WorkDir::for_sandbox(user()).expect("work directory");
        assert!(work.has_sandbox());
        for part in PARTS.iter().chain(&[""]) {
            let path = work.path().join(part);
            assert!(all_can_enter(&path), "{}", path.display());
            assert_eq!(mode(&path), 0o711);
        }
        let download = work.download_dir().expect("download directory");
        let metadata = fs::metadata(download.path()).expect("metadata");
        assert_eq!(
            (metadata.uid(), metadata.mode() & 0o7777),
            (user().uid, 0o700)
        );
        let path = work.path().to_owned();
        drop((download, work));
        assert!(!path.exists());
    }

    #[test]
    fn work_directory_in_the_cache_is_private_and_stays() {
        let root = tempfile::tempdir().expect("tempdir");
        let suite = root.path().join("sid");
        let work = WorkDir::in_cache(suite.clone()).expect("work directory");
        assert!(!work.has_sandbox());
        for part in PARTS {
            assert_eq!(mode(&suite.join(part)), 0o700, "{part}");
        }
        drop(work);
        assert!(suite.join("lists/partial").exists());
    }

    #[test]
    fn directory_below_a_private_one_cannot_be_entered_by_all() {
        let private = tempfile::tempdir().expect("tempdir");
        let inside = private.path().join("tmp");
        fs::create_dir(&inside).expect("mkdir");
        fs::set_permissions(&inside, Permissions::from_mode(0o777)).expect("chmod");
        fs::set_permissions(private.path(), Permissions::from_mode(0o700)).expect("chmod");
        assert!(!all_can_enter(&inside));
        fs::set_permissions(private.path(), Permissions::from_mode(0o711)).expect("chmod");
        assert!(all_can_enter(&inside));
        assert!(!all_can_enter(Path::new("/nonexistent")));
    }
}
