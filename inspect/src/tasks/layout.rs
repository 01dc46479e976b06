//! The places of a task's members.

use std::ops::Range;

use introspect::Btf;
use introspect::btf::Slot;

use super::cgroup::TaskCgroup;
use super::command_line::ProgramLayout;
use super::name::WorkerLayout;
use crate::structs::{NoType, StructType};

/// `TASK_COMM_LEN` is 16.
const MAX_COMM_BYTES: u64 = 64;

/// The members of `task_struct` and of the structs behind it.
#[derive(Debug)]
pub(super) struct TaskLayout {
    /// The number of bytes that hold all members below.
    pub(super) len: usize,
    /// `tasks.next`: the link between the first threads of processes.
    pub(super) tasks: Slot,
    /// `thread_node.next`: the link between the threads of a process.
    pub(super) threads: Slot,
    pub(super) tid: Slot,
    pub(super) pid: Slot,
    pub(super) comm: Range<usize>,
    pub(super) flags: Slot,
    pub(super) state: Slot,
    pub(super) exit_state: Slot,
    pub(super) parent: Slot,
    pub(super) cred: Slot,
    pub(super) signal: Slot,
    pub(super) memory: Slot,
    /// `signal_struct.thread_head.next`.
    pub(super) thread_head: Slot,
    /// `cred.uid` and `cred.euid`.
    pub(super) uid: Slot,
    pub(super) euid: Slot,
    /// Absent if the kernel is built without cgroups.
    pub(super) cgroup: Option<TaskCgroup>,
    /// Absent if the types do not describe address spaces.
    pub(super) program: Option<ProgramLayout>,
    /// Absent if the types do not describe kernel threads.
    pub(super) worker: Option<WorkerLayout>,
}

impl TaskLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let task = StructType::named(btf, "task_struct")?;
        let signal = StructType::named(btf, "signal_struct")?;
        let cred = StructType::named(btf, "cred")?;
        let mut layout = Self {
            len: 0,
            tasks: task.slot("tasks.next")?,
            threads: task.slot("thread_node.next")?,
            tid: task.slot("pid")?,
            pid: task.slot("tgid")?,
            comm: task.bytes("comm", MAX_COMM_BYTES)?,
            flags: task.slot("flags")?,
            // `state` up to 5.13.
            state: task.slot("__state").or_else(|_| task.slot("state"))?,
            exit_state: task.slot("exit_state")?,
            parent: task.slot("real_parent")?,
            cred: task.slot("real_cred")?,
            signal: task.slot("signal")?,
            memory: task.slot("mm")?,
            thread_head: signal.slot("thread_head.next")?,
            uid: cred.slot("uid.val")?,
            euid: cred.slot("euid.val")?,
            cgroup: TaskCgroup::new(btf),
            program: ProgramLayout::new(btf).ok(),
            worker: WorkerLayout::new(btf).ok(),
        };
        layout.len = layout
            .slots()
            .map(Slot::end)
            .fold(layout.comm.end, usize::max);
        Ok(layout)
    }

    /// The numbers in `task_struct`.
    fn slots(&self) -> impl Iterator<Item = Slot> {
        let required = [
            self.tasks,
            self.threads,
            self.tid,
            self.pid,
            self.flags,
            self.state,
            self.exit_state,
            self.parent,
            self.cred,
            self.signal,
            self.memory,
        ];
        let optional = [
            self.cgroup.as_ref().map(|cgroup| cgroup.set),
            self.worker.as_ref().map(|worker| worker.thread),
        ];
        required.into_iter().chain(optional.into_iter().flatten())
    }
}
