//! The path of a cgroup.

use address::Gva;

use crate::btf::{Btf, Slot};

/// `CGROUP_ANCESTORS` and kernfs have no limit; systemd nests some ten.
const MAX_DEPTH: usize = 64;
/// `NAME_MAX`.
const MAX_NAME_BYTES: usize = 256;

/// Fills the bytes from the address on; `false` if they cannot be read.
pub type ReadAt<'r> = &'r mut dyn FnMut(Gva, &mut [u8]) -> bool;

/// The members from a `struct css_set` to the name of the cgroup in the hierarchy of version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupLayout {
    /// `css_set.dfl_cgrp`.
    cgroup: Slot,
    /// `cgroup.kn`.
    node: Slot,
    /// `kernfs_node.id`. Absent up to 5.4, where it has another form.
    id: Option<Slot>,
    parent: Slot,
    name: Slot,
}

impl CgroupLayout {
    /// The layout from the kernel's types; `None` if the kernel is built without cgroups.
    #[must_use]
    pub fn new(btf: &Btf) -> Option<Self> {
        let slot = |of, path| Slot::find(btf, btf.struct_named(of)?, path);
        Some(Self {
            cgroup: slot("css_set", "dfl_cgrp")?,
            node: slot("cgroup", "kn")?,
            id: slot("kernfs_node", "id"),
            // `parent` up to 6.14.
            parent: slot("kernfs_node", "__parent").or_else(|| slot("kernfs_node", "parent"))?,
            name: slot("kernfs_node", "name")?,
        })
    }

    /// The kernfs node of the cgroup of the `css_set` at `set`, by two reads; `None` if a part cannot be read.
    #[must_use]
    pub fn node(&self, set: Gva, read: ReadAt<'_>) -> Option<Gva> {
        let cgroup = pointer(set, self.cgroup, read)?;
        pointer(cgroup, self.node, read)
    }

    /// The number of a kernfs node, which the kernel gives to no other node of the hierarchy before the next boot. A cgroup of
    /// version 2 is never renamed, so the number stands for the path.
    #[must_use]
    pub fn id(&self, node: Gva, read: ReadAt<'_>) -> Option<u64> {
        number(node, self.id?, read)
    }

    /// The path of the cgroup with the kernfs node `node`, as in the line `0::` of `/proc/PID/cgroup`; `None` if a part cannot be
    /// read, or if the path has more than 64 names.
    #[must_use]
    pub fn path(&self, mut node: Gva, read: ReadAt<'_>) -> Option<String> {
        let mut names = Vec::new();
        for _ in 0..MAX_DEPTH {
            let parent = Gva(number(node, self.parent, read)?);
            if parent == Gva(0) {
                // The root has no name.
                names.reverse();
                return Some(format!("/{}", names.join("/")));
            }
            let name = pointer(node, self.name, read)?;
            names.push(text(name, read)?);
            node = parent;
        }
        None
    }
}

/// The number at `slot` of the struct at `at`.
fn number(at: Gva, slot: Slot, read: ReadAt<'_>) -> Option<u64> {
    let mut bytes = [0; 8];
    let field = bytes.get_mut(..slot.size())?;
    read(at.wrapping_add(slot.at() as u64), field).then(|| u64::from_le_bytes(bytes))
}

/// The pointer at `slot` of the struct at `at`; `None` for a null pointer, too.
fn pointer(at: Gva, slot: Slot, read: ReadAt<'_>) -> Option<Gva> {
    number(at, slot, read).filter(|at| *at != 0).map(Gva)
}

/// The text at `at` up to the first zero. Bytes that are not UTF-8 are replaced.
fn text(at: Gva, read: ReadAt<'_>) -> Option<String> {
    /// Short names are the rule; a read must not run into a page without memory.
    const PIECE_BYTES: u64 = 32;
    let mut text = Vec::new();
    while text.len() < MAX_NAME_BYTES {
        let start = text.len();
        let at = at.wrapping_add(start as u64);
        let piece = usize::try_from(PIECE_BYTES - at.0 % PIECE_BYTES).unwrap_or(1);
        text.resize(start + piece, 0);
        if !read(at, &mut text[start..]) {
            return None;
        }
        if let Some(end) = text.iter().position(|byte| *byte == 0) {
            text.truncate(end);
            break;
        }
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;

    const SET: u64 = 0x100;
    const CGROUP: u64 = 0x200;
    const NODES: [u64; 3] = [0x300, 0x340, 0x380];
    /// Each name has two pieces.
    const NAMES: u64 = 0x41c;

    fn layout() -> CgroupLayout {
        let mut blob = Blob::new();
        let long = blob.int("unsigned long", 8);
        blob.structure("css_set", 16, &[("dfl_cgrp", long, 8)]);
        blob.structure("cgroup", 16, &[("kn", long, 8)]);
        let node = [("__parent", long, 0), ("name", long, 8), ("id", long, 16)];
        blob.structure("kernfs_node", 24, &node);
        let types = Btf::parse(blob.finish()).expect("types");
        CgroupLayout::new(&types).expect("cgroups")
    }

    /// The bytes from address 0 on: `/outer/inner`.
    fn memory() -> Vec<u8> {
        let mut memory = vec![0; 0x500];
        let mut word = |at: u64, value: u64| {
            let at = usize::try_from(at).expect("small");
            memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        word(SET + 8, CGROUP);
        word(CGROUP + 8, NODES[0]);
        word(NODES[0], NODES[1]);
        word(NODES[0] + 8, NAMES);
        word(NODES[0] + 16, 77);
        word(NODES[1], NODES[2]);
        word(NODES[1] + 8, NAMES + 0x40);
        for (at, name) in [(NAMES, "inner"), (NAMES + 0x40, "outer")] {
            let at = usize::try_from(at).expect("small");
            memory[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        memory
    }

    /// The number and the path, and the number of reads for each.
    fn found(memory: &[u8]) -> (Option<u64>, Option<String>, [usize; 2]) {
        let mut reads = 0;
        let mut read = |at: Gva, buf: &mut [u8]| {
            reads += 1;
            let held = usize::try_from(at.0).ok().and_then(|at| {
                let end = at.checked_add(buf.len())?;
                memory.get(at..end)
            });
            held.is_some_and(|held| {
                buf.copy_from_slice(held);
                true
            })
        };
        let layout = layout();
        let node = layout.node(Gva(SET), &mut read);
        let id = node.and_then(|node| layout.id(node, &mut read));
        let path = node.and_then(|node| layout.path(node, &mut read));
        let before = if id.is_some() { 3 } else { 0 };
        (id, path, [before, reads - before])
    }

    #[test]
    fn cgroup_has_a_number_and_a_path() {
        let (id, path, reads) = found(&memory());
        assert_eq!((id, path.as_deref()), (Some(77), Some("/outer/inner")));
        // Three for the number; the path takes a parent of each of three nodes, and a pointer and two pieces for each of two names.
        assert_eq!(reads, [3, 9]);
    }

    #[test]
    fn circle_of_cgroups_has_no_path() {
        let mut memory = memory();
        let at = usize::try_from(NODES[1]).expect("small");
        memory[at..at + 8].copy_from_slice(&NODES[0].to_le_bytes());
        assert_eq!(found(&memory).1, None);
    }

    #[test]
    fn unreadable_part_leaves_no_path() {
        for at in [SET + 8, CGROUP + 8, NODES[0], NODES[0] + 8] {
            let mut memory = memory();
            let at = usize::try_from(at).expect("small");
            memory[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert_eq!(found(&memory).1, None, "{at:#x}");
        }
    }
}
