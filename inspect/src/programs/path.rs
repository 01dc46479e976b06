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

/// `FMODE_BACKING` of `file.f_mode`: the upper bit before 6.14, and the lower one since. Files of other kinds have one of the bits, too.
const BACKING: u64 = 3 << 24;
/// `FMODE_NOACCOUNT`, which each such file has.
const NOT_COUNTED: u64 = 1 << 29;

/// A `struct path`.
#[derive(Debug)]
struct PathSlots {
    mount: Slot,
    entry: Slot,
}

impl PathSlots {
    fn new(holder: &StructType<'_>, name: &str) -> Result<Self, NoType> {
        Ok(Self {
            mount: holder.slot(&format!("{name}.mnt"))?,
            entry: holder.slot(&format!("{name}.dentry"))?,
        })
    }

    fn read(&self, reads: &Reads<'_>, holder: Gva) -> Result<(Gva, Gva), ReadsError> {
        let mount = reads.number(holder, self.mount)?;
        let entry = reads.number(holder, self.entry)?;
        Ok((Gva(mount), Gva(entry)))
    }
}

/// The path of a file that an overlay has opened for a file of its own, as the overlay's users know it: since 6.7, `f_path` has the path below the overlay.
#[derive(Debug)]
struct OverlayPath {
    /// `file.f_mode`.
    mode: Slot,
    /// `backing_file.user_path`. The `struct file` is the first member.
    path: PathSlots,
    /// `vfsmount.mnt_sb` and `dentry.d_sb`.
    mounted: Slot,
    file_system: Slot,
}

impl OverlayPath {
    fn new(btf: &Btf) -> Result<Self, NoType> {
        Ok(Self {
            mode: StructType::named(btf, "file")?.slot("f_mode")?,
            path: PathSlots::new(&StructType::named(btf, "backing_file")?, "user_path")?,
            mounted: StructType::named(btf, "vfsmount")?.slot("mnt_sb")?,
            file_system: StructType::named(btf, "dentry")?.slot("d_sb")?,
        })
    }

    /// The mount and the entry of the path; `None` if the `struct file` at `file` is of another kind.
    fn read(&self, reads: &Reads<'_>, file: Gva) -> Option<(Gva, Gva)> {
        let mode = reads.number(file, self.mode).ok()?;
        (mode & BACKING != 0 && mode & NOT_COUNTED != 0).then_some(())?;
        let (mount, entry) = self.path.read(reads, file).ok()?;
        // A file of another kind ends before such a path.
        let mounted = reads.number(mount, self.mounted).ok()?;
        let file_system = reads.number(entry, self.file_system).ok()?;
        (mounted == file_system && mounted != 0).then_some((mount, entry))
    }
}

/// The members from a `struct file` to its path.
#[derive(Debug)]
pub(super) struct PathLayout {
    path: PathSlots,
    /// `None` in a kernel whose `f_path` has the overlay's path.
    of_overlay: Option<OverlayPath>,
    /// `dentry`: the directory, the name, and the link that a file without a name lacks.
    parent: Slot,
    name: Slot,
    linked: Slot,
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
            path: PathSlots::new(&file, "f_path")?,
            of_overlay: OverlayPath::new(btf).ok(),
            parent: entry.slot("d_parent")?,
            name: entry.slot("d_name.name")?,
            linked: entry.slot("d_hash.pprev")?,
            root,
            embedded: within.saturating_sub(root.at()) as u64,
            outer: mount.slot("mnt_parent")?,
            point: mount.slot("mnt_mountpoint")?,
        })
    }

    /// The path from the root of all mounts; that of a file without a directory, such as a memfd, has no slash before its name.
    pub(super) fn of(&self, reads: &Reads<'_>, file: Gva) -> Result<String, ReadsError> {
        let embedded_in = |mount: u64| Gva(mount.wrapping_sub(self.embedded));
        let of_overlay = self.of_overlay.as_ref();
        let in_overlay = of_overlay.and_then(|overlay| overlay.read(reads, file));
        let (mut mount, mut entry) = match in_overlay {
            Some(path) => path,
            None => self.path.read(reads, file)?,
        };
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
        let file = [("f_mode", long, 0), ("f_path", path, 16)];
        let file = blob.structure("file", 32, &file);
        let backing = [("file", file, 0), ("user_path", path, 32)];
        blob.structure("backing_file", 48, &backing);
        let name = blob.structure("qstr", 16, &[("name", long, 8)]);
        let link = blob.structure("hlist_bl_node", 16, &[("pprev", long, 8)]);
        let members = [
            ("d_hash", link, 0),
            ("d_parent", long, 16),
            ("d_name", name, 24),
            ("d_sb", long, 40),
        ];
        blob.structure("dentry", 64, &members);
        let inner = [("mnt_root", long, 0), ("mnt_sb", long, 8)];
        let inner = blob.structure("vfsmount", 16, &inner);
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
    fn file_below_an_overlay_has_the_path_in_the_overlay() {
        let mut fake = kernel();
        fake.point(FILE + 32, MOUNTS[0] + 16);
        fake.point(FILE + 40, ENTRIES[1]);
        for at in [MOUNTS[0] + 24, ENTRIES[1] + 40] {
            fake.put64(at, 0x5b);
        }
        // Of 6.12 and 7.2; without the bit; with the bits of a file of a watched file system, which is not longer than others, since 6.14.
        for (mode, is_below) in [
            (0x2200_801d, true),
            (0x2100_801d, true),
            (0x2000_801d, false),
            (0x0600_801d, false),
        ] {
            fake.put64(FILE, mode);
            let wanted = if is_below { "/lib" } else { "/lib/c.so" };
            assert_eq!(path(&fake), wanted, "{mode:#x}");
        }
        // What follows a `struct file` is no path.
        fake.put64(FILE, 0x2600_801d);
        fake.put64(MOUNTS[0] + 24, 0x5c);
        assert_eq!(path(&fake), "/lib/c.so");
        fake.put64(FILE + 32, 7);
        assert_eq!(path(&fake), "/lib/c.so");
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
