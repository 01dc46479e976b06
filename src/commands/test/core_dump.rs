//! The core file of a case whose guest crashes.
//!
//! The file exists during the boot: a thread that writes a dump may open no file. After the boot, the file of a guest that has not crashed
//! is removed, and so is the file of a passed case.

use files::{CreateError, Folder, Opened};

use crate::run::crash_dump::CoreFile;

/// The name of the file in the folder of a case.
pub(super) const NAME: &str = "vmcore";

/// The core file of a boot.
#[derive(Debug)]
pub(super) struct CoreDump<'a> {
    all: &'a Folder,
    name: &'a str,
    folder: Folder,
    pub(super) file: CoreFile,
}

impl<'a> CoreDump<'a> {
    /// Makes the file in the folder `name` of `all`.
    pub(super) fn prepare(all: &'a Folder, name: &'a str) -> Result<Self, CreateError> {
        let folder = all.subfolder(name)?;
        folder.remove(NAME)?;
        let file = CoreFile::new(Opened::Regular(folder.create_new(NAME)?));
        Ok(Self {
            all,
            name,
            folder,
            file,
        })
    }

    /// Removes the file, unless the case has failed and the guest has crashed. Returns whether the file stays.
    pub(super) fn settle(self, has_failed: bool) -> bool {
        let stays = has_failed && self.file.has_dump();
        if !stays {
            // If the file cannot be removed, the user finds a file too many.
            let _ = self.folder.remove(NAME);
            // The folder may have artifacts of an earlier boot.
            let _ = self.all.remove_folder(self.name);
        }
        stays
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    /// Prepares the file of the case `a`, writes a dump, and settles.
    fn settled(path: &Path, has_crashed: bool, has_failed: bool) -> bool {
        let all = Folder::open_or_make(path).expect("a folder");
        let dump = CoreDump::prepare(&all, "a").expect("a file");
        let file = path.join("a").join(NAME);
        let mode = fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        if has_crashed {
            let written = dump.file.writer().expect("a file").write(|mut core| {
                core.write(b"core")?;
                core.finish()
            });
            assert_eq!(written.expect("written"), 4);
        }
        dump.settle(has_failed)
    }

    #[test]
    fn only_the_dump_of_a_failed_case_stays() {
        let folder = tempfile::tempdir().expect("tempdir");
        assert!(!settled(folder.path(), false, true));
        assert!(!settled(folder.path(), true, false));
        assert!(!folder.path().join("a").exists());
        assert!(settled(folder.path(), true, true));
        assert!(folder.path().join("a").join(NAME).exists());
    }

    #[test]
    fn new_boot_removes_the_dump_and_keeps_other_artifacts() {
        let folder = tempfile::tempdir().expect("tempdir");
        assert!(settled(folder.path(), true, true));
        let other = folder.path().join("a/reasons.txt");
        fs::write(&other, "x").expect("written");
        assert!(!settled(folder.path(), false, true));
        assert!(!folder.path().join("a").join(NAME).exists());
        assert!(other.exists());
    }
}
