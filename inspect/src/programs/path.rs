//! The path of a file, as `/proc/PID/maps` shows it.

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;

use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// `PATH_MAX` has 2048 parts of one letter; a path of more parts than this is cut.
const MAX_PARTS: usize = 128;
/// `PATH_MAX`.
const MAX_BYTES: usize = 4096;
/// `NAME_MAX`.
const MAX_NAME_BYTES: usize = 256;
/// What the kernel appends to the path of a file without a name in its directory.
const DELETED: &str = " (deleted)";

/// The members from a `struct file` to its path.
#[derive(Debug)]
pub(super) struct PathLayout {
    mount: Slot,
    entry: Slot,
    /// `dentry`: the directory, the name, and the link that a file without a name lacks.
    parent: Slot,
    name: Slot,
    linked: Slot,
    /// `dentry.d_sb`.
    file_system: Slot,
    /// `vfsmount.mnt_root`.
    root: Slot,
    /// The `vfsmount` within `struct mount`, bytes.
    embedded: u64,
    /// `mount.mnt_parent` and `mount.mnt_mountpoint`.
    outer: Slot,
    point: Slot,
}

impl PathLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let file = StructType::named(btf, "file")?;
        let entry = StructType::named(btf, "dentry")?;
        let mount = StructType::named(btf, "mount")?;
        let root = StructType::named(btf, "vfsmount")?.slot("mnt_root")?;
        let within = mount.slot("mnt.mnt_root")?.at();
        Ok(Self {
            mount: file.slot("f_path.mnt")?,
            entry: file.slot("f_path.dentry")?,
            parent: entry.slot("d_parent")?,
            name: entry.slot("d_name.name")?,
            linked: entry.slot("d_hash.pprev")?,
            file_system: entry.slot("d_sb")?,
            root,
            embedded: within.saturating_sub(root.at()) as u64,
            outer: mount.slot("mnt_parent")?,
            point: mount.slot("mnt_mountpoint")?,
        })
    }

    /// The `super_block` in which the file was opened. The contents may be those of a file in another.
    pub(super) fn file_system(&self, reads: &Reads<'_>, file: Gva) -> Result<Gva, ReadsError> {
        let entry = Gva(reads.number(file, self.entry)?);
        Ok(Gva(reads.number(entry, self.file_system)?))
    }

    /// The path from the root of all mounts; that of a file without a directory, such as a memfd, has no slash before its name.
    pub(super) fn of(&self, reads: &Reads<'_>, file: Gva) -> Result<String, ReadsError> {
        let embedded_in = |mount: u64| Gva(mount.wrapping_sub(self.embedded));
        let mut mount = Gva(reads.number(file, self.mount)?);
        let mut entry = Gva(reads.number(file, self.entry)?);
        let is_deleted = reads.number(entry, self.linked)? == 0;
        let mut parts = Vec::new();
        let mut has_root = false;
        while parts.len() < MAX_PARTS {
            let parent = Gva(reads.number(entry, self.parent)?);
            if entry == Gva(reads.number(mount, self.root)?) {
                let inner = embedded_in(mount.0);
                let outer = Gva(reads.number(inner, self.outer)?);
                if outer == inner {
                    has_root = true;
                    break;
                }
                // Mounts on one another have no name in between, and count as parts nevertheless: the walk ends.
                parts.push(String::new());
                entry = Gva(reads.number(inner, self.point)?);
                mount = outer.wrapping_add(self.embedded);
                continue;
            }
            let name = Gva(reads.number(entry, self.name)?);
            parts.push(reads.string(name, MAX_NAME_BYTES)?);
            if parent == entry {
                break;
            }
            entry = parent;
        }
        let names: Vec<&str> = parts
            .iter()
            .rev()
            .map(String::as_str)
            .filter(|name| !name.is_empty())
            .collect();
        let start = if has_root { "/" } else { "" };
        let mut path = format!("{start}{}", names.join("/"));
        // A name may have bytes that are not UTF-8, which take more room.
        path.truncate(path.floor_char_boundary(MAX_BYTES));
        if is_deleted {
            path.push_str(DELETED);
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use introspect::btf::synthetic::Blob;

    use super::*;
    use crate::fake::{Fake, at};

    const FILE: u64 = 0x100;
    /// The root of all mounts, and a mount on its directory `lib`.
    const MOUNTS: [u64; 2] = [0x200, 0x300];
    /// `/`, `lib`, the root of the mount there, and its file `c.so`.
    const ENTRIES: [u64; 4] = [0x400, 0x500, 0x600, 0x700];

    fn kernel() -> Fake {
        let mut blob = Blob::new();
        let long = blob.int("unsigned long", 8);
        let path = blob.structure("path", 16, &[("mnt", long, 0), ("dentry", long, 8)]);
        blob.structure("file", 32, &[("f_path", path, 16)]);
        let name = blob.structure("qstr", 16, &[("name", long, 8)]);
        let link = blob.structure("hlist_bl_node", 16, &[("pprev", long, 8)]);
        let members = [
            ("d_hash", link, 0),
            ("d_parent", long, 16),
            ("d_name", name, 24),
            ("d_sb", long, 56),
        ];
        blob.structure("dentry", 64, &members);
        let inner = blob.structure("vfsmount", 8, &[("mnt_root", long, 0)]);
        let members = [
            ("mnt_parent", long, 0),
            ("mnt_mountpoint", long, 8),
            ("mnt", inner, 16),
        ];
        blob.structure("mount", 32, &members);
        let mut fake = Fake::new(blob, 0x1000, &[]);
        let [root, library, top, file] = ENTRIES;
        for (entry, parent, text) in [
            (root, root, "/"),
            (library, root, "lib"),
            (top, top, "/"),
            (file, top, "c.so"),
        ] {
            fake.put64(entry + 8, 1);
            fake.point(entry + 16, parent);
            fake.point(entry + 32, entry + 0x80);
            fake.put(entry + 0x80, text.as_bytes());
        }
        let [outer, inner] = MOUNTS;
        fake.point(outer, outer);
        fake.point(outer + 16, root);
        fake.point(inner, outer);
        fake.point(inner + 8, library);
        fake.point(inner + 16, top);
        fake.point(FILE + 16, inner + 16);
        fake.point(FILE + 24, file);
        fake
    }

    fn path(fake: &Fake) -> String {
        let view = fake.view();
        let layout = PathLayout::new(view.types().expect("types")).expect("a layout");
        let path = layout.of(&Reads::new(&view, 1 << 20), at(FILE));
        path.expect("readable")
    }

    #[test]
    fn path_goes_through_mounts() {
        let mut fake = kernel();
        assert_eq!(path(&fake), "/lib/c.so");
        fake.put64(ENTRIES[3] + 8, 0);
        assert_eq!(path(&fake), "/lib/c.so (deleted)");
    }

    #[test]
    fn file_without_a_directory_has_no_slash() {
        let mut fake = kernel();
        fake.point(ENTRIES[3] + 16, ENTRIES[3]);
        assert_eq!(path(&fake), "c.so");
    }

    #[test]
    fn circle_ends() {
        let mut fake = kernel();
        fake.point(ENTRIES[1] + 16, ENTRIES[1]);
        fake.point(MOUNTS[1], MOUNTS[0]);
        fake.point(MOUNTS[0], MOUNTS[1]);
        fake.point(MOUNTS[1] + 8, ENTRIES[2]);
        assert!(path(&fake).len() < MAX_PARTS * MAX_NAME_BYTES);
    }
}
