//! The first threads of processes: found by the number of the process, and recognised at their address.
//!
//! The kernel gives each thread a number (`pid`), and the number of its process (`tgid`); the two are equal for the first thread. If another thread calls
//! `execve`, that thread takes the numbers of the first one, and becomes the `group_leader` of the former.

use std::collections::{BTreeMap, BTreeSet};

use address::Gva;
use introspect::Btf;
use introspect::btf::Slot;

use super::{TaskList, TaskListError};
use crate::structs::StructType;
use crate::view::KernelView;

/// A reader of the first threads of processes. [`find`](Self::find) reads while the kernel is paused.
#[derive(Debug)]
pub struct FirstThreads {
    list: TaskList,
    /// `task_struct.group_leader`.
    leader: Slot,
    /// The offset of `task_struct.rcu`.
    rcu: u64,
}

impl FirstThreads {
    /// Takes the layout of tasks from the kernel's types.
    ///
    /// # Errors
    ///
    /// If the types do not describe tasks.
    pub fn new(types: &Btf) -> Result<Self, TaskListError> {
        let list = TaskList::of(types)?;
        let task = StructType::named(types, "task_struct")?;
        let leader = task.slot("group_leader")?;
        // The first member of `struct rcu_head`.
        let rcu = task.slot("rcu.next")?.at() as u64;
        Ok(Self { list, leader, rcu })
    }

    /// The task whose member `rcu` is at `head`.
    #[must_use]
    pub const fn task_of(&self, head: Gva) -> Gva {
        Gva(head.0.wrapping_sub(self.rcu))
    }

    /// The addresses of the first threads of the processes with the numbers `pids`, as far as there are such processes.
    ///
    /// # Errors
    ///
    /// If the list is broken.
    pub fn find(
        &self,
        view: &KernelView<'_>,
        pids: &BTreeSet<u32>,
    ) -> Result<BTreeMap<u32, Gva>, TaskListError> {
        let mut found = BTreeMap::new();
        self.list.each(view, false, &mut |_, at, bytes| {
            let thread = self.list.layout.thread(at, bytes);
            let pid = u32::try_from(thread.pid).ok();
            if let Some(pid) = pid.filter(|pid| thread.tid == thread.pid && pids.contains(pid)) {
                found.entry(pid).or_insert(at);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The number of the process whose first thread is at `task`; `None` if another thread is there, or memory cannot be read.
    #[must_use]
    pub fn process_of(&self, view: &KernelView<'_>, task: Gva) -> Option<u32> {
        let layout = &self.list.layout;
        let [tid, pid] = [layout.tid, layout.pid].map(|slot| number(view, task, slot));
        let pid = pid.filter(|_| pid == tid)?;
        u32::try_from(pid).ok()
    }

    /// Whether another thread has taken the place of the former first thread at `task`.
    #[must_use]
    pub fn is_replaced(&self, view: &KernelView<'_>, task: Gva) -> bool {
        number(view, task, self.leader).is_some_and(|leader| leader != task.0)
    }
}

fn number(view: &KernelView<'_>, task: Gva, slot: Slot) -> Option<u64> {
    let mut bytes = [0; size_of::<u64>()];
    let at = task.wrapping_add(slot.at() as u64);
    view.read(at, bytes.get_mut(..slot.size())?).ok()?;
    Some(u64::from_le_bytes(bytes))
}
