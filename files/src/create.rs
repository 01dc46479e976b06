//! Outputs named by users.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, ftruncate, readlinkat};
use rustix::io::Errno;

use crate::beneath::{self, PRIVATE_FILE};
use crate::descriptor;
use crate::error::CreateError;
use crate::owner::Owner;
use crate::walk::{self, is_trusted};

/// Maximum number of attempts: another process may replace the file between two looks.
const TRIES: usize = 8;

/// Opens the output at `path` for writing: a new file with mode 0600, an empty regular file, or a FIFO or a device.
///
/// `/dev/stdout`, `/dev/stderr`, `/dev/fd/N` and `/proc/self/fd/N` name inherited descriptors: the output goes to a duplicate, and the
/// file keeps its contents. The call refuses any other symbolic link at the name, links of other users in the path, files and FIFOs of
/// other users, and files with several names. Root's files are not other users'. The open of a FIFO waits for a reader.
///
/// # Errors
///
/// See [`CreateError`].
pub fn create(path: &Path) -> Result<File, CreateError> {
    match open(path)? {
        Opened::Regular(file) => {
            ftruncate(&file, 0)?;
            Ok(file)
        }
        Opened::Stream(file) => Ok(file),
    }
}

/// An open output.
#[derive(Debug)]
pub enum Opened {
    /// A regular file, opened by its name.
    Regular(File),
    /// A FIFO, a device, or an inherited descriptor, which may be a file with contents.
    Stream(File),
}

impl Opened {
    /// A second handle of the output.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Regular(file) => Self::Regular(file.try_clone()?),
            Self::Stream(file) => Self::Stream(file.try_clone()?),
        })
    }
}

/// Opens the output at `path` as [`create`] does, and leaves the contents of a regular file. The file gets mode 0600.
///
/// # Errors
///
/// See [`CreateError`].
pub fn open_private(path: &Path) -> Result<Opened, CreateError> {
    let opened = open(path)?;
    if let Opened::Regular(file) = &opened {
        fchmod(file, PRIVATE_FILE)?;
    }
    Ok(opened)
}

/// Opens the output at `path`, and leaves the contents and the mode of a regular file.
pub(crate) fn open(path: &Path) -> Result<Opened, CreateError> {
    walk::file_name(path)?;
    if let Some(number) = descriptor::named_by(path) {
        return Ok(Opened::Stream(descriptor::duplicate(number)?));
    }
    let (directory, name) = walk::parent(path)?;
    for _ in 0..TRIES {
        let opened = match beneath::open(&directory, name, OFlags::PATH, Mode::empty()) {
            Ok(found) => open_found(&directory, name, &found)?,
            Err(Errno::NOENT) => make(&directory, name)?.map(Opened::Regular),
            Err(error) => return Err(error.into()),
        };
        if let Some(opened) = opened {
            return Ok(opened);
        }
    }
    Err(CreateError::Replaced)
}

/// Creates the file; `None` if the name has a file meanwhile.
pub(crate) fn make(directory: &OwnedFd, name: &OsStr) -> Result<Option<File>, CreateError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    match beneath::open(directory, name, flags, PRIVATE_FILE) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::EXIST) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens the file of `found`; `None` if the name has another file meanwhile.
fn open_found(
    directory: &OwnedFd,
    name: &OsStr,
    found: &OwnedFd,
) -> Result<Option<Opened>, CreateError> {
    let stat = fstat(found)?;
    check(&stat, found)?;
    let flags = OFlags::WRONLY | OFlags::NOCTTY;
    let file = match beneath::open(directory, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let opened = fstat(&file)?;
    if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
        return Ok(None);
    }
    Ok(Some(
        match FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile {
            true => Opened::Regular(file.into()),
            false => Opened::Stream(file.into()),
        },
    ))
}

/// Checks that hyprobe may write to the file. Devices are the system's; for directories and sockets, the open itself fails with a reason.
pub(crate) fn check(stat: &Stat, found: &OwnedFd) -> Result<(), CreateError> {
    let foreign = |found| match is_trusted(stat.st_uid) {
        true => Ok(()),
        false => Err(CreateError::ForeignFile {
            found,
            owner: Owner::new(stat.st_uid),
        }),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Err(link_error(found)),
        FileType::RegularFile => {
            foreign("file")?;
            match stat.st_nlink {
                // Without a name, the file is not at the name any more: the open fails.
                0 | 1 => Ok(()),
                links => Err(CreateError::HardLink { links }),
            }
        }
        FileType::Fifo => foreign("FIFO"),
        _ => Ok(()),
    }
}

/// The error of the symbolic link `link`, open with `PATH`.
pub(crate) fn link_error(link: &OwnedFd) -> CreateError {
    use std::os::unix::ffi::OsStringExt as _;
    match readlinkat(link, "", Vec::new()) {
        Ok(target) => CreateError::Link {
            target: std::ffi::OsString::from_vec(target.into_bytes()).into(),
        },
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::time::{Duration, Instant};

    use rustix::fs::{CWD, mkfifoat};
    use rustix::process::geteuid;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    #[test]
    fn new_file_is_the_users_alone_and_an_old_one_is_emptied() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("out");
        for text in ["first, and longer", "second"] {
            let mut file = create(&path).expect("created");
            file.write_all(text.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("read"), text);
            assert_eq!(mode(&path), 0o600);
        }
    }

    #[test]
    fn file_opened_as_private_keeps_its_contents_and_loses_readers() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("out");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        let opened = open_private(&path).expect("opened");
        assert!(matches!(opened, Opened::Regular(_)), "{opened:?}");
        assert_eq!(fs::read_to_string(&path).expect("read"), "old");
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn link_at_the_name_is_refused_and_its_target_stays() {
        let folder = tempfile::tempdir().expect("tempdir");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "mine").expect("written");
        symlink(&target, &link).expect("link");
        let error = create(&link).expect_err("a link");
        assert!(matches!(error, CreateError::Link { .. }), "{error}");
        assert!(error.to_string().contains(target.to_str().expect("UTF-8")));
        assert_eq!(fs::read_to_string(&target).expect("read"), "mine");

        // A link without a target would otherwise make the target.
        fs::remove_file(&target).expect("removed");
        let error = create(&link).expect_err("a link");
        assert!(matches!(error, CreateError::Link { .. }), "{error}");
        assert!(!target.exists());
    }

    #[test]
    fn target_of_a_link_forges_no_line_of_the_message() {
        let folder = tempfile::tempdir().expect("tempdir");
        let link = folder.path().join("link");
        symlink("\u{1b}[2J\nerror: fake", &link).expect("link");
        let told = create(&link).expect_err("a link").to_string();
        let quoted = r#"link to "\u{1b}[2J\nerror: fake","#;
        assert!(told.contains(quoted), "{told}");
        assert!(!told.contains(char::is_control), "{told}");
    }

    #[test]
    fn file_with_another_name_is_refused_and_keeps_its_contents() {
        let folder = tempfile::tempdir().expect("tempdir");
        let (precious, path) = (folder.path().join("precious"), folder.path().join("out"));
        fs::write(&precious, "mine").expect("written");
        fs::hard_link(&precious, &path).expect("linked");
        let error = create(&path).expect_err("two names");
        assert!(
            matches!(error, CreateError::HardLink { links: 2 }),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&precious).expect("read"), "mine");

        fs::remove_file(&path).expect("removed");
        create(&precious).expect("one name");
        assert_eq!(fs::read_to_string(&precious).expect("read"), "");
    }

    #[test]
    fn link_of_the_user_in_the_path_is_followed() {
        let folder = tempfile::tempdir().expect("tempdir");
        fs::create_dir(folder.path().join("real")).expect("mkdir");
        symlink("real", folder.path().join("link")).expect("link");
        create(&folder.path().join("link/out")).expect("created");
        assert!(folder.path().join("real/out").exists());
    }

    #[test]
    fn devices_and_fifos_are_opened() {
        create(Path::new("/dev/null")).expect("opened");
        let folder = tempfile::tempdir().expect("tempdir");
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o600)).expect("a FIFO");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| fs::read_to_string(&fifo));
            let mut writer = create(&fifo).expect("opened");
            writer.write_all(b"events").expect("written");
            drop(writer);
            let text = reader.join().expect("no panic").expect("read");
            assert_eq!(text, "events");
        });
    }

    #[test]
    fn directories_and_paths_without_a_name_are_errors() {
        let folder = tempfile::tempdir().expect("tempdir");
        let error = create(folder.path()).expect_err("a directory");
        assert!(matches!(error, CreateError::Io(_)), "{error}");
        for end in ["out/", "out/.", "out//", ".", "..", ""] {
            let path = folder.path().join(end);
            let error = create(&path).expect_err("no name");
            assert!(matches!(error, CreateError::NoName), "{end}: {error}");
        }
        let error = create(Path::new("/")).expect_err("no name");
        assert!(matches!(error, CreateError::NoName), "{error}");
        assert!(!folder.path().join("out").exists());
    }

    /// Only root can give a file to another user. Without root, the rule itself gets the other user's number.
    #[test]
    fn file_and_fifo_of_another_user_are_refused_at_once() {
        const OTHER: u32 = 65_534;
        let folder = tempfile::tempdir().expect("tempdir");
        let (file, fifo) = (folder.path().join("file"), folder.path().join("fifo"));
        fs::write(&file, "theirs").expect("written");
        mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o666)).expect("a FIFO");
        for path in [&file, &fifo] {
            let found: OwnedFd = rustix::fs::open(path, OFlags::PATH, Mode::empty()).expect("open");
            let mut stat = fstat(&found).expect("open");
            check(&stat, &found).expect("the user's");
            stat.st_uid = OTHER;
            let mut refused = vec![check(&stat, &found)];
            if geteuid().is_root() {
                chown(path, Some(OTHER), None).expect("given away");
                let began = Instant::now();
                refused.push(create(path).map(drop));
                assert!(began.elapsed() < Duration::from_secs(10));
            }
            for result in refused {
                match result.expect_err("another user's") {
                    CreateError::ForeignFile { owner, .. } => assert_eq!(owner.uid(), OTHER),
                    other => panic!("{other}"),
                }
            }
        }
        assert_eq!(fs::read_to_string(&file).expect("read"), "theirs");
    }
}
