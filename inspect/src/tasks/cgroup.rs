//! The path of a task's cgroup.

use std::collections::HashMap;

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;

use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// `CGROUP_ANCESTORS` and kernfs have no limit; systemd nests some ten.
const MAX_DEPTH: usize = 64;
/// `NAME_MAX`.
const MAX_NAME_BYTES: usize = 256;

/// The members from a task to the name of its cgroup.
#[derive(Debug)]
pub(super) struct CgroupLayout {
    /// `task_struct.cgroups`.
    pub(super) set: Slot,
    cgroup: Slot,
    node: Slot,
    parent: Slot,
    name: Slot,
}

/// The paths found so far, by the address of the `css_set`: many tasks share one.
pub(super) type Paths = HashMap<Gva, Option<String>>;

impl CgroupLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let node = StructType::named(btf, "kernfs_node")?;
        Ok(Self {
            set: StructType::named(btf, "task_struct")?.slot("cgroups")?,
            cgroup: StructType::named(btf, "css_set")?.slot("dfl_cgrp")?,
            node: StructType::named(btf, "cgroup")?.slot("kn")?,
            // `parent` up to 6.14.
            parent: node.slot("__parent").or_else(|_| node.slot("parent"))?,
            name: node.slot("name")?,
        })
    }

    /// The path in the hierarchy of version 2, as in the line `0::` of `/proc/PID/cgroup`. `None` if a part cannot be read: a task
    /// without a readable cgroup is still a task.
    pub(super) fn path(&self, reads: &Reads<'_>, task: &[u8], paths: &mut Paths) -> Option<String> {
        let set = Gva(self.set.read(task)?);
        let path = paths
            .entry(set)
            .or_insert_with(|| self.path_of(reads, set).ok().flatten());
        path.clone()
    }

    fn path_of(&self, reads: &Reads<'_>, set: Gva) -> Result<Option<String>, ReadsError> {
        let Some(cgroup) = reads.pointer(set, self.cgroup)? else {
            return Ok(None);
        };
        let Some(mut node) = reads.pointer(cgroup, self.node)? else {
            return Ok(None);
        };
        let mut names = Vec::new();
        for _ in 0..MAX_DEPTH {
            let Some(parent) = reads.pointer(node, self.parent)? else {
                // The root has no name.
                names.reverse();
                return Ok(Some(format!("/{}", names.join("/"))));
            };
            let Some(name) = reads.pointer(node, self.name)? else {
                return Ok(None);
            };
            names.push(reads.string(name, MAX_NAME_BYTES)?);
            node = parent;
        }
        Ok(None)
    }
}
