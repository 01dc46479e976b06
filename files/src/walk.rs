//! Walk along a path to a directory, link by link.
//!
//! A path may lead through links of the system's administrator or of the user: `/var/run`, a moved home directory, the workspace of a CI
//! job. With a link in `/tmp` or in a shared directory, another user would choose the file that hyprobe writes. The kernel's
//! `fs.protected_symlinks` refuses some of the links, in directories with the sticky bit and write access for all users; not every host
//! enables the setting.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, mkdirat, open, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::beneath::PRIVATE_FOLDER;
use crate::error::CreateError;
use crate::owner::Owner;

/// As many links as the kernel follows in a path.
const MAX_LINKS: usize = 40;

/// Action of the walk at a missing directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The walk fails.
    Fail,
    /// The walk makes a directory for the user alone.
    Make,
}

/// A directory at the end of a walk.
#[derive(Debug)]
pub(crate) struct Walked {
    pub(crate) directory: OwnedFd,
    /// Whether the walk has made the directory.
    pub(crate) is_new: bool,
}

/// Whether `owner` is the user or root.
pub(crate) fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == geteuid().as_raw()
}

/// Opens the directory `path`, named by the user. Links of other users in the path are refused.
///
/// # Errors
///
/// See [`CreateError`].
pub fn open_directory(path: &Path) -> Result<OwnedFd, CreateError> {
    Ok(directory(path, Missing::Fail)?.directory)
}

/// Opens the directory `path`.
pub(crate) fn directory(path: &Path, missing: Missing) -> Result<Walked, CreateError> {
    let mut ahead = pieces(path);
    let start = if path.is_absolute() { "/" } else { "." };
    let mut walked = Walked {
        directory: open(start, directory_flags(), Mode::empty())?,
        is_new: false,
    };
    // The walked path, for messages only.
    let mut so_far = PathBuf::new();
    let mut links = 0;
    while let Some(piece) = ahead.pop_front() {
        let at = so_far.join(&piece);
        if Path::new(&piece).is_absolute() || piece == ".." {
            walked = Walked {
                directory: openat(&walked.directory, &piece, directory_flags(), Mode::empty())?,
                is_new: false,
            };
            so_far = at;
            continue;
        }
        let (entry, is_new) = enter(&walked.directory, &piece, missing)?;
        let stat = fstat(&entry)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                walked = Walked {
                    directory: entry,
                    is_new,
                };
                so_far = at;
            }
            FileType::Symlink if !is_trusted(stat.st_uid) => {
                return Err(CreateError::ForeignLink {
                    link: at,
                    owner: Owner::new(stat.st_uid),
                });
            }
            FileType::Symlink if links < MAX_LINKS => {
                links += 1;
                let target = readlinkat(&entry, "", Vec::new())?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                for piece in pieces(&target).into_iter().rev() {
                    ahead.push_front(piece);
                }
            }
            FileType::Symlink => return Err(Errno::LOOP.into()),
            _ => return Err(Errno::NOTDIR.into()),
        }
    }
    Ok(walked)
}

/// The components of a path; the first is `/` if the path is absolute.
fn pieces(path: &Path) -> VecDeque<OsString> {
    let components = path.components();
    let named = components.filter(|component| *component != Component::CurDir);
    named
        .map(|component| component.as_os_str().to_owned())
        .collect()
}

fn directory_flags() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// Opens the entry `name` itself, even if the entry is a link. Makes a missing directory if `missing` is [`Missing::Make`].
fn enter(
    directory: &OwnedFd,
    name: &OsStr,
    missing: Missing,
) -> Result<(OwnedFd, bool), CreateError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // With `DIRECTORY`, the kernel mounts file systems on demand. With `PATH` alone, the kernel opens the directory below the mount.
    let open = || match openat(directory, name, flags | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => openat(directory, name, flags, Mode::empty()),
        opened => opened,
    };
    match open() {
        Err(Errno::NOENT) if missing == Missing::Make => {
            let is_new = match mkdirat(directory, name, PRIVATE_FOLDER) {
                Ok(()) => true,
                // Another process was faster.
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            Ok((open()?, is_new))
        }
        opened => Ok((opened?, false)),
    }
}

/// The last name of `path`. `Path::file_name` ignores `/` and `/.` at the end, which name a directory.
pub(crate) fn file_name(path: &Path) -> Result<&OsStr, CreateError> {
    let text = path.as_os_str().as_bytes();
    match path.file_name() {
        Some(name) if text.ends_with(name.as_bytes()) => Ok(name),
        _ => Err(CreateError::NoName),
    }
}

/// Opens the directory of the file `path`. Returns the directory and the file's name. Links of other users in the path are refused.
///
/// # Errors
///
/// See [`CreateError`].
pub fn parent(path: &Path) -> Result<(OwnedFd, &OsStr), CreateError> {
    let name = file_name(path)?;
    let parent = path.parent().unwrap_or(Path::new(""));
    let walked = directory(parent, Missing::Fail)?;
    Ok((walked.directory, name))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, lchown, symlink};

    use rustix::fs::fstatfs;
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen,
    };

    use super::*;

    fn inode(path: &Path) -> u64 {
        fs::metadata(path).expect("there").ino()
    }

    fn walked_to(path: &Path) -> u64 {
        let walked = directory(path, Missing::Fail).expect("a directory");
        fstat(walked.directory).expect("open").st_ino
    }

    #[test]
    fn links_of_the_user_lead_to_their_targets() {
        let folder = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("a/b")).expect("mkdir");
        symlink("a/../a", at("relative")).expect("link");
        symlink(at("relative/b"), at("absolute")).expect("link");
        for path in ["a/b", "relative/b", "absolute", "absolute/../b", "./a/./b/"] {
            assert_eq!(walked_to(&at(path)), inode(&at("a/b")), "{path}");
        }
    }

    #[test]
    fn links_in_a_circle_are_an_error() {
        let folder = tempfile::tempdir().expect("tempdir");
        let link = folder.path().join("link");
        symlink("link", &link).expect("link");
        let error = directory(&link, Missing::Fail).expect_err("a circle");
        assert!(matches!(error, CreateError::Io(_)), "{error}");
    }

    #[test]
    fn missing_directories_are_made_for_the_user_alone_if_asked() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("a/b");
        directory(&path, Missing::Fail).expect_err("nothing there");
        assert!(directory(&path, Missing::Make).expect("made").is_new);
        assert!(!directory(&path, Missing::Make).expect("found").is_new);
        for path in [path.as_path(), &folder.path().join("a")] {
            let mode = fs::metadata(path).expect("there").mode();
            assert_eq!(mode & 0o7777, 0o700, "{}", path.display());
        }
    }

    /// debugfs mounts tracefs at `tracing` on demand. Without root, no mount is possible: the test checks the kernel's refusal instead.
    #[test]
    fn directory_that_is_mounted_on_demand_is_mounted() {
        const TRACEFS_MAGIC: u64 = 0x7472_6163;
        let context = match fsopen("debugfs", FsOpenFlags::FSOPEN_CLOEXEC) {
            Err(Errno::NODEV) => {
                let known = fs::read_to_string("/proc/filesystems").expect("read");
                return assert!(!known.contains("debugfs"), "{known}");
            }
            Err(error) => return assert_eq!((error, geteuid().is_root()), (Errno::PERM, false)),
            Ok(context) => context,
        };
        fsconfig_create(&context).expect("a file system");
        let debugfs = fsmount(
            &context,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::empty(),
        );
        let debugfs = debugfs.expect("a mount without a path");
        let (tracing, _) = enter(&debugfs, OsStr::new("tracing"), Missing::Fail).expect("there");
        let found = fstatfs(&tracing).expect("open").f_type;
        assert_eq!(u64::try_from(found), Ok(TRACEFS_MAGIC));
    }

    /// Only root can give a link to another user. Without root, the test checks only the rule.
    #[test]
    fn link_of_another_user_is_refused() {
        const OTHER: u32 = 65_534;
        assert!(!is_trusted(OTHER) && is_trusted(0) && is_trusted(geteuid().as_raw()));
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("tempdir");
        let link = folder.path().join("link");
        symlink(folder.path(), &link).expect("link");
        lchown(&link, Some(OTHER), Some(OTHER)).expect("given away");
        let error = directory(&link, Missing::Fail).expect_err("a stranger's");
        match error {
            CreateError::ForeignLink { link: at, owner } => {
                assert_eq!((at, owner.uid()), (link, OTHER))
            }
            other => panic!("{other}"),
        }
    }
}
