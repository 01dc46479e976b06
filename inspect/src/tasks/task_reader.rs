//! Reads a task in guest memory.
//!
//! ```text
//!  task_struct ──▶ numbers, name, flags, and pointers to
//!                    cred         ── one read ───▶ uid
//!                    real_parent  ── two reads ──▶ number and name
//!                    css_set      ── three reads ▶ number of the cgroup ──▶ path, read at the first hit in the cgroup
//! ```
//!
//! Every event pays for these reads, so members are read alone, by words: a `task_struct` takes 10 KiB, the members some 60 bytes. Most
//! addresses are in a page or under a page directory that the hit has walked to before.
//!
//! The guest may change all of it at any time, and may lie: a part that cannot be read is left out.

use std::fmt;

use address::Gva;
use introspect::btf::Slot;
use introspect::tasks::MAX_COMM_BYTES;
use introspect::{PhysMemory, TaskLayout, Walks};

use super::cgroup_paths::CgroupPaths;
use super::running_task::{ParentTask, RunningTask};
use crate::reads::until_zero;

#[cfg(test)]
mod tests;

/// The size of a word.
const WORD_BYTES: u64 = size_of::<u64>() as u64;

/// A reader of the tasks of a kernel with the page tables of `walks`.
pub struct TaskReader<'r, M: ?Sized> {
    layout: &'r TaskLayout,
    memory: &'r M,
    walks: &'r Walks,
}

impl<M: ?Sized> fmt::Debug for TaskReader<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskReader")
            .field("layout", &self.layout)
            .field("walks", &self.walks)
            .finish_non_exhaustive()
    }
}

impl<'r, M: PhysMemory + ?Sized> TaskReader<'r, M> {
    /// A reader of the tasks with the members at `layout`, in the physical `memory` behind the page tables of `walks`.
    pub const fn new(layout: &'r TaskLayout, memory: &'r M, walks: &'r Walks) -> Self {
        Self {
            layout,
            memory,
            walks,
        }
    }

    fn fill(&self, at: Gva, bytes: &mut [u8]) -> Option<()> {
        self.walks.read(self.memory, at, bytes).ok()
    }

    fn word(&self, at: Gva) -> Option<u64> {
        self.walks.read_u64(self.memory, at).ok()
    }

    /// The number at `slot` of the struct at `at`.
    fn number(&self, at: Gva, slot: Slot) -> Option<u64> {
        let at = at.wrapping_add(slot.at() as u64);
        let skipped = at.0 % WORD_BYTES;
        let behind = (WORD_BYTES - skipped).checked_sub(slot.size() as u64);
        if let Some(behind) = behind {
            // Within one word, which is in one page.
            let word = self.word(Gva(at.0 - skipped))?;
            return Some(word << (8 * behind) >> (8 * (behind + skipped)));
        }
        let mut bytes = [0; size_of::<u64>()];
        self.fill(at, bytes.get_mut(..slot.size())?)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// The pointer at `slot` of the struct at `at`; `None` for a null pointer, too.
    fn pointer(&self, at: Gva, slot: Slot) -> Option<Gva> {
        self.number(at, slot).filter(|at| *at != 0).map(Gva)
    }

    /// The address of the `struct task_struct` whose pointer is at `current`.
    pub fn current(&self, current: Gva) -> Option<Gva> {
        self.word(current).map(Gva)
    }

    /// The numbers of the task at `task`.
    pub fn numbers(&self, task: Gva) -> Option<TaskNumbers> {
        let numbers = self.word(task.wrapping_add(self.layout.tid))?;
        let [t0, t1, t2, t3, p0, p1, p2, p3] = numbers.to_le_bytes();
        Some(TaskNumbers {
            thread: u32::from_le_bytes([t0, t1, t2, t3]),
            process: u32::from_le_bytes([p0, p1, p2, p3]),
        })
    }

    /// The real user of the task at `task`, as a number in the initial user namespace.
    pub fn user(&self, task: Gva) -> Option<u32> {
        let user = self.layout.user?;
        let cred = self.pointer(task, user.cred)?;
        u32::try_from(self.number(cred, user.uid)?).ok()
    }

    /// The name of the task at `task`, as the kernel has it: anything may be behind the zero at the end. `None` if names have another size.
    pub fn name<const BYTES: usize>(&self, task: Gva) -> Option<[u8; BYTES]> {
        let mut comm = [0; BYTES];
        (self.layout.comm_bytes == BYTES).then_some(())?;
        self.fill(task.wrapping_add(self.layout.comm), &mut comm)?;
        Some(comm)
    }

    /// The numbers and the name of the task at `task`.
    pub fn named(&self, task: Gva) -> Option<RunningTask> {
        let numbers = self.numbers(task)?;
        let mut comm = [0; MAX_COMM_BYTES];
        let comm = comm.get_mut(..self.layout.comm_bytes)?;
        self.fill(task.wrapping_add(self.layout.comm), comm)?;
        Some(RunningTask {
            tid: numbers.thread.cast_signed(),
            pid: numbers.process.cast_signed(),
            comm: until_zero(comm),
            ..RunningTask::default()
        })
    }

    /// All that is known of the task at `task`.
    pub fn detailed(&self, task: Gva, paths: &CgroupPaths) -> Option<RunningTask> {
        let layout = self.layout;
        let named = self.named(task)?;
        // The members of the task first: they are in one page, or two.
        let flags = layout.flags.and_then(|flags| self.number(task, flags));
        let parent = layout.parent.and_then(|slot| self.pointer(task, slot));
        let set = layout.cgroup.and_then(|(slot, _)| self.pointer(task, slot));
        let uid = self.user(task);
        let cgroup = layout.cgroup.zip(set).and_then(|((_, behind), set)| {
            let mut read = |at: Gva, buf: &mut [u8]| self.fill(at, buf).is_some();
            paths.of(&behind, set, &mut read)
        });
        let parent = parent.and_then(|parent| self.named(parent));
        Some(RunningTask {
            uid,
            kernel_thread: flags.map(TaskLayout::is_kernel_thread),
            parent: parent.map(|parent| ParentTask {
                pid: parent.pid,
                comm: parent.comm,
            }),
            cgroup,
            ..named
        })
    }
}

/// The numbers of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskNumbers {
    /// The number of the thread (the kernel's `pid`).
    pub thread: u32,
    /// The number of the process (the kernel's `tgid`).
    pub process: u32,
}
