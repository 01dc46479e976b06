//! Changes of files during a run.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The attributes of a file that show a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    inode: u64,
    mode: u32,
    bytes: u64,
    modified: (i64, i64),
    /// The time of the last change, which no call can set.
    changed: (i64, i64),
}

/// All files and directories below some directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot(BTreeMap<PathBuf, State>);

impl Snapshot {
    /// Lists the present files.
    pub(super) fn of(directories: &[&Path]) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        let mut rest: Vec<PathBuf> = directories.iter().map(|&path| path.to_owned()).collect();
        while let Some(path) = rest.pop() {
            let metadata = path.symlink_metadata()?;
            if metadata.is_dir() {
                for entry in std::fs::read_dir(&path)? {
                    rest.push(entry?.path());
                }
            }
            let state = State {
                inode: metadata.ino(),
                mode: metadata.mode(),
                bytes: if metadata.is_dir() { 0 } else { metadata.len() },
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            };
            files.insert(path, state);
        }
        Ok(Self(files))
    }

    /// The differences from `before`.
    pub(super) fn changes(&self, before: &Self) -> Vec<String> {
        let made = self.0.keys().filter(|path| !before.0.contains_key(*path));
        let gone = before.0.keys().filter(|path| !self.0.contains_key(*path));
        let changed = self.0.iter().filter_map(|(path, state)| {
            let was = before.0.get(path)?;
            (was != state).then_some(path)
        });
        made.map(|path| format!("{} was made", path.display()))
            .chain(gone.map(|path| format!("{} was removed", path.display())))
            .chain(changed.map(|path| format!("{} was changed", path.display())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_removed_and_changed_files_are_found() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("d")).expect("d");
        for name in ["d/same", "d/changed", "d/gone"] {
            std::fs::write(at(name), "a").expect(name);
        }
        let sub = at("d");
        let before = Snapshot::of(&[&sub]).expect("before");
        assert_eq!(
            Snapshot::of(&[&sub]).expect("again").changes(&before),
            [""; 0]
        );
        std::fs::write(at("d/changed"), "bc").expect("changed");
        std::fs::remove_file(at("d/gone")).expect("gone");
        std::fs::write(at("d/made"), "").expect("made");
        let changes = Snapshot::of(&[&sub])
            .expect("after")
            .changes(&before)
            .join(", ");
        for word in [
            "made was made",
            "gone was removed",
            "changed was changed",
            "d was changed",
        ] {
            assert!(changes.contains(word), "{changes}");
        }
        assert!(!changes.contains("same"), "{changes}");
    }
}
