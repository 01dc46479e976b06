//! Outputs whose old contents stay until the new contents are complete.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, renameat, unlinkat};
use rustix::io::Errno;

use crate::beneath;
use crate::create::{Opened, check, make, open};
use crate::descriptor;
use crate::error::CreateError;
use crate::walk;

/// Maximum number of names that are tried: a process that was killed may have left its part.
const NAMES: usize = 8;

/// An output whose old file stays at its name until [`finish`](Self::finish). Without `finish`, the new file is removed.
#[derive(Debug)]
pub struct Replacement {
    output: Opened,
    part: Option<Part>,
}

/// The new file's name, before the new file gets the name of the old.
#[derive(Debug)]
struct Part {
    directory: OwnedFd,
    part: OsString,
    name: OsString,
}

impl Replacement {
    /// Makes a new file with mode 0600 beside `path`: `FILE.PID.part`. If `path` is a FIFO, a device or an inherited descriptor, opens that
    /// instead. Refuses what [`create`](crate::create()) refuses.
    ///
    /// # Errors
    ///
    /// See [`CreateError`].
    pub fn create(path: &Path) -> Result<Self, CreateError> {
        let stream = || match open(path)? {
            Opened::Regular(_) => Err(CreateError::Replaced),
            output @ Opened::Stream(_) => Ok(Self { output, part: None }),
        };
        if descriptor::named_by(path).is_some() {
            return stream();
        }
        let (directory, name) = walk::parent(path)?;
        match beneath::open(&directory, name, OFlags::PATH, Mode::empty()) {
            Ok(found) => {
                let stat = fstat(&found)?;
                check(&stat, &found)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return stream();
                }
            }
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let name = name.to_owned();
        for number in 0..NAMES {
            let mut part = name.clone();
            match number {
                0 => part.push(format!(".{}.part", std::process::id())),
                _ => part.push(format!(".{}-{number}.part", std::process::id())),
            }
            if let Some(file) = make(&directory, &part)? {
                let part = Part {
                    directory,
                    part,
                    name,
                };
                return Ok(Self {
                    output: Opened::Regular(file),
                    part: Some(part),
                });
            }
        }
        Err(CreateError::Replaced)
    }

    /// A second handle of the output.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub fn output(&self) -> io::Result<Opened> {
        self.output.try_clone()
    }

    /// Gives the new file the name of the old file.
    ///
    /// # Errors
    ///
    /// If the file cannot be renamed. The new file is then removed.
    pub fn finish(mut self) -> io::Result<()> {
        if let Some(part) = &self.part {
            renameat(&part.directory, &part.part, &part.directory, &part.name)?;
        }
        self.part = None;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // If the file cannot be removed, the user finds a file too many.
            let _ = unlinkat(&part.directory, &part.part, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn file(replacement: &Replacement) -> File {
        match replacement.output().expect("a descriptor") {
            Opened::Regular(file) => file,
            Opened::Stream(_) => panic!("a stream"),
        }
    }

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).expect("read").count()
    }

    #[test]
    fn old_file_stays_until_the_new_one_is_complete_and_two_do_not_mix() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("core");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        let [first, second] = ["first", "second"].map(|text| {
            let new = Replacement::create(&path).expect("a file");
            file(&new).write_all(text.as_bytes()).expect("written");
            new
        });
        assert_eq!(fs::read(&path).expect("read"), b"old");
        drop(second);
        assert_eq!(fs::read(&path).expect("read"), b"old");
        first.finish().expect("renamed");
        assert_eq!(fs::read(&path).expect("read"), b"first");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(names(folder.path()), 1);
    }

    #[test]
    fn links_are_refused_and_devices_are_streams() {
        let folder = tempfile::tempdir().expect("tempdir");
        let link = folder.path().join("link");
        symlink("target", &link).expect("link");
        let error = Replacement::create(&link).expect_err("a link");
        assert!(matches!(error, CreateError::Link { .. }), "{error}");
        assert_eq!(names(folder.path()), 1);
        let device = Replacement::create(Path::new("/dev/null")).expect("opened");
        let output = device.output().expect("a descriptor");
        assert!(matches!(output, Opened::Stream(_)), "{output:?}");
        device.finish().expect("nothing to do");
    }
}
