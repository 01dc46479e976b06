//! The path of a task's cgroup.

use std::collections::HashMap;

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;
use introspect::tasks::CgroupLayout;

use crate::reads::Reads;

/// The members from a task to the name of its cgroup.
#[derive(Debug)]
pub(super) struct TaskCgroup {
    /// `task_struct.cgroups`.
    pub(super) set: Slot,
    behind: CgroupLayout,
}

/// The paths found so far, by the address of the `css_set`: many tasks share one.
pub(super) type Paths = HashMap<Gva, Option<String>>;

impl TaskCgroup {
    /// `None` if the kernel is built without cgroups.
    pub(super) fn new(btf: &Btf) -> Option<Self> {
        let task = btf.struct_named("task_struct")?;
        Some(Self {
            set: Slot::find(btf, task, "cgroups")?,
            behind: CgroupLayout::new(btf)?,
        })
    }

    /// The path in the hierarchy of version 2, as in the line `0::` of `/proc/PID/cgroup`. `None` if a part cannot be read: a task
    /// without a readable cgroup is still a task.
    pub(super) fn path(&self, reads: &Reads<'_>, task: &[u8], paths: &mut Paths) -> Option<String> {
        let set = Gva(self.set.read(task)?);
        let mut read = |at: Gva, buf: &mut [u8]| reads.fill(at, buf).is_ok();
        let path = paths.entry(set).or_insert_with(|| {
            let node = self.behind.node(set, &mut read)?;
            self.behind.path(node, &mut read)
        });
        path.clone()
    }
}
