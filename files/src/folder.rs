//! A folder below which no symbolic link is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, fchown, fstat, mkdirat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::beneath::{self, PRIVATE_FOLDER};
use crate::create::{link_error, make};
use crate::error::CreateError;
use crate::walk::{self, Missing};

/// An open folder, in which a test keeps files.
#[derive(Debug)]
pub struct Folder {
    directory: OwnedFd,
    is_new: bool,
}

impl Folder {
    /// Opens the folder `path`, which the user names. Missing folders are made with mode 0700. Links of other
    /// users in the path are refused.
    ///
    /// # Errors
    ///
    /// See [`CreateError`].
    pub fn open_or_make(path: &Path) -> Result<Self, CreateError> {
        let walked = walk::directory(path, Missing::Make)?;
        Ok(Self {
            directory: walked.directory,
            is_new: walked.is_new,
        })
    }

    /// Whether the open has made the folder.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Makes another user the owner of a new folder. An existing folder keeps its owner.
    ///
    /// Another user with write access to the parent can exchange the new folder with a folder of root between `mkdirat` and the open.
    /// Therefore only an empty folder of the process's user is given away: the other user could have made an equal folder.
    ///
    /// # Errors
    ///
    /// See [`CreateError`].
    pub fn give_to(&self, uid: u32, gid: u32) -> Result<(), CreateError> {
        if !self.is_new {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let itself = beneath::open(&self.directory, OsStr::new("."), flags, Mode::empty())?;
        let is_own = fstat(&itself)?.st_uid == geteuid().as_raw();
        if !is_own || !is_empty(&itself)? {
            return Err(CreateError::Exchanged);
        }
        Ok(fchown(
            &itself,
            Some(Uid::from_raw(uid)),
            Some(Gid::from_raw(gid)),
        )?)
    }

    /// Opens the folder `name` in this folder. A missing folder is made with mode 0700.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]. A symbolic link is refused.
    pub fn subfolder(&self, name: &str) -> Result<Self, CreateError> {
        let name = OsStr::new(name);
        let is_new = match mkdirat(&self.directory, name, PRIVATE_FOLDER) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        self.refuse_link(name)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let directory = beneath::open(&self.directory, name, flags, Mode::empty())?;
        Ok(Self { directory, is_new })
    }

    /// Removes the file `name`, if it exists.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]. A symbolic link is refused.
    pub fn remove(&self, name: &str) -> Result<(), CreateError> {
        let name = OsStr::new(name);
        self.refuse_link(name)?;
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the new file `name` with mode 0600.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]. An existing file or symbolic link is refused.
    pub fn write_new(&self, name: &str, contents: &[u8]) -> Result<(), CreateError> {
        Ok(self.create_new(name)?.write_all(contents)?)
    }

    /// Makes the new file `name` with mode 0600.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]. An existing file or symbolic link is refused.
    pub fn create_new(&self, name: &str) -> Result<File, CreateError> {
        make(&self.directory, OsStr::new(name))?.ok_or(Errno::EXIST.into())
    }

    /// Removes the folder `name`, if the folder is empty.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]. A folder with files is an error.
    pub fn remove_folder(&self, name: &str) -> Result<(), CreateError> {
        Ok(unlinkat(
            &self.directory,
            OsStr::new(name),
            AtFlags::REMOVEDIR,
        )?)
    }

    /// Refuses a symbolic link with an error that names the target. Without the check, the next call would fail without the target, or
    /// remove the link.
    fn refuse_link(&self, name: &OsStr) -> Result<(), CreateError> {
        let found = match beneath::open(&self.directory, name, OFlags::PATH, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            found => found?,
        };
        match FileType::from_raw_mode(fstat(&found)?.st_mode) {
            FileType::Symlink => Err(link_error(&found)),
            _ => Ok(()),
        }
    }
}

fn is_empty(directory: &OwnedFd) -> Result<bool, CreateError> {
    for entry in Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    #[test]
    fn folders_and_files_are_the_users_alone() {
        let parent = tempfile::tempdir().expect("tempdir");
        let path = parent.path().join("artifacts");
        let folder = Folder::open_or_make(&path).expect("made");
        let case = folder.subfolder("case").expect("made");
        case.write_new("file", b"text").expect("written");
        let modes = ["", "case", "case/file"].map(|name| mode(&path.join(name)));
        assert_eq!(modes, [0o700, 0o700, 0o600]);
        assert!(folder.is_new() && case.is_new());
        assert!(!Folder::open_or_make(&path).expect("found").is_new());

        case.write_new("file", b"other").expect_err("there is one");
        case.remove("file").expect("removed");
        case.remove("file").expect("nothing to do");
        case.write_new("file", b"other").expect("written");
        assert_eq!(fs::read(path.join("case/file")).expect("read"), b"other");
    }

    #[test]
    fn link_below_the_folder_is_refused_and_its_target_stays() {
        let parent = tempfile::tempdir().expect("tempdir");
        let (path, elsewhere) = (parent.path().join("a"), parent.path().join("elsewhere"));
        fs::create_dir(&elsewhere).expect("mkdir");
        fs::write(elsewhere.join("file"), "mine").expect("written");
        let folder = Folder::open_or_make(&path).expect("made");
        symlink(&elsewhere, path.join("case")).expect("link");
        symlink(elsewhere.join("file"), path.join("file")).expect("link");

        let told = [folder.subfolder("case").map(|_| ()), folder.remove("file")];
        for result in told {
            let error = result.expect_err("a link");
            assert!(matches!(error, CreateError::Link { .. }), "{error}");
        }
        folder.write_new("file", b"other").expect_err("a link");
        assert_eq!(
            fs::read_to_string(elsewhere.join("file")).expect("read"),
            "mine"
        );
    }

    /// The folder `path`, marked as new.
    fn as_new(path: &Path) -> Folder {
        Folder {
            is_new: true,
            ..Folder::open_or_make(path).expect("found")
        }
    }

    #[test]
    fn folder_in_place_of_the_new_one_is_not_given_away() {
        let own = geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let parent = tempfile::tempdir().expect("tempdir");
        let path = parent.path().join("folder");
        fs::create_dir(&path).expect("mkdir");
        as_new(&path).give_to(own, group).expect("empty");

        fs::write(path.join("file"), "mine").expect("written");
        let error = as_new(&path).give_to(own, group).expect_err("not empty");
        assert!(matches!(error, CreateError::Exchanged), "{error}");
        let found = Folder::open_or_make(&path).expect("found");
        found.give_to(own, group).expect("nothing to do");
    }

    /// Only root can give a folder away. Without root, the kernel refuses.
    #[test]
    fn new_folder_is_given_away_once() {
        const OTHER: u32 = 65_534;
        const THIRD: u32 = 65_533;
        let parent = tempfile::tempdir().expect("tempdir");
        let path = parent.path().join("folder");
        let folder = Folder::open_or_make(&path).expect("made");
        let owner = || fs::metadata(&path).expect("there").uid();
        let given = folder.give_to(OTHER, OTHER);
        if !geteuid().is_root() {
            let error = given.expect_err("only root can");
            assert!(matches!(error, CreateError::Io(_)), "{error}");
            return assert_eq!(owner(), geteuid().as_raw());
        }
        given.expect("given away");
        assert_eq!(owner(), OTHER);

        let error = folder.give_to(THIRD, THIRD).expect_err("another user's");
        assert!(matches!(error, CreateError::Exchanged), "{error}");
        assert_eq!(owner(), OTHER);
        chown(&path, Some(0), None).expect("taken back");
        let found = Folder::open_or_make(&path).expect("found");
        found.give_to(OTHER, OTHER).expect("nothing to do");
        assert_eq!(owner(), 0);
    }
}
