//! Reads a task in guest memory.
//!
//! ```text
//!  task_struct ── one read ──▶ numbers, name, flags, and pointers to
//!                                cred         ── one read ───▶ uid
//!                                real_parent  ── two reads ──▶ number and name
//!                                css_set      ── three reads ▶ number of the cgroup ──▶ path, read at the first hit in the cgroup
//! ```
//!
//! The guest may change all of it at any time, and may lie: a part that cannot be read is left out.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use address::Gva;
use arc_swap::ArcSwap;
use introspect::tasks::{CgroupLayout, ReadAt};
use introspect::{PagingState, PhysMemory, TaskLayout, read_virt};

use super::running_task::{ParentTask, RunningTask};
use crate::reads::until_zero;

/// The most cgroups whose paths are kept. A server has some hundred.
const MAX_PATHS: usize = 1024;
/// Longer paths are left out: many events may wait for a reader.
const MAX_PATH_BYTES: usize = 1024;

/// The paths of cgroups, by the numbers of their kernfs nodes. Every event looks a path up, without a lock; a new path replaces the map.
#[derive(Debug, Default)]
pub struct CgroupPaths(ArcSwap<HashMap<u64, Option<Arc<str>>>>);

impl CgroupPaths {
    /// The path of the cgroup of the `css_set` at `set`.
    fn of(&self, layout: &CgroupLayout, set: Gva, read: ReadAt<'_>) -> Option<Arc<str>> {
        let node = layout.node(set, read)?;
        let id = layout.id(node, read)?;
        if let Some(known) = self.0.load().get(&id) {
            return known.clone();
        }
        let path = layout.path(node, read)?;
        let path: Option<Arc<str>> = (path.len() <= MAX_PATH_BYTES).then(|| path.into());
        // Another vCPU may have moved the task, and the memory may be another node's by now.
        if layout.id(node, read) == Some(id) {
            // Of two vCPUs with new paths, both are kept: the closure may run again.
            self.0.rcu(|paths| match paths.len() {
                MAX_PATHS.. => HashMap::from([(id, path.clone())]),
                _ => {
                    let mut paths = HashMap::clone(paths);
                    paths.insert(id, path.clone());
                    paths
                }
            });
        }
        path
    }

    /// Forgets the paths: another kernel gives the numbers anew.
    pub fn forget(&self) {
        self.0.store(Arc::default());
    }
}

/// A reader of the tasks of a kernel with the page tables `paging`.
pub struct TaskReader<'r, M: ?Sized> {
    /// Where the members are.
    pub layout: &'r TaskLayout,
    /// Guest-physical memory.
    pub memory: &'r M,
    /// The kernel's page tables.
    pub paging: &'r PagingState,
}

impl<M: ?Sized> fmt::Debug for TaskReader<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskReader")
            .field("layout", &self.layout)
            .field("paging", &self.paging)
            .finish_non_exhaustive()
    }
}

impl<M: PhysMemory + ?Sized> TaskReader<'_, M> {
    fn fill(&self, at: Gva, bytes: &mut [u8]) -> Option<()> {
        read_virt(self.memory, self.paging, at, bytes).ok()
    }

    fn bytes<const LEN: usize>(&self, at: Gva) -> Option<[u8; LEN]> {
        let mut bytes = [0; LEN];
        self.fill(at, &mut bytes)?;
        Some(bytes)
    }

    /// The address of the `struct task_struct` whose pointer is at `current`.
    pub fn current(&self, current: Gva) -> Option<Gva> {
        self.bytes(current).map(u64::from_le_bytes).map(Gva)
    }

    /// The numbers and the name of the task at `task`, by two reads.
    pub fn named(&self, task: Gva) -> Option<RunningTask> {
        let numbers = self.bytes(task.wrapping_add(self.layout.tid))?;
        let mut comm = vec![0; self.layout.comm_bytes];
        self.fill(task.wrapping_add(self.layout.comm), &mut comm)?;
        Some(named(numbers, &comm))
    }

    /// All that is known of the task at `task`.
    pub fn detailed(&self, task: Gva, paths: &CgroupPaths) -> Option<RunningTask> {
        let layout = self.layout;
        let mut bytes = vec![0; layout.len];
        if self.fill(task, &mut bytes).is_none() {
            return self.named(task);
        }
        let part = |at: u64, len: usize| {
            let at = usize::try_from(at).ok()?;
            bytes.get(at..at.checked_add(len)?)
        };
        let numbers = part(layout.tid, 8)?.try_into().ok()?;
        let pointer = |at: Option<u64>| at.filter(|at| *at != 0).map(Gva);
        let uid = layout.user.and_then(|user| {
            let cred = pointer(user.cred.read(&bytes))?;
            self.bytes(cred.wrapping_add(user.uid.at() as u64))
        });
        let parent = layout.parent.and_then(|slot| {
            let parent = self.named(pointer(slot.read(&bytes))?)?;
            Some(ParentTask {
                pid: parent.pid,
                comm: parent.comm,
            })
        });
        let cgroup = layout.cgroup.and_then(|(slot, behind)| {
            let mut read = |at: Gva, buf: &mut [u8]| self.fill(at, buf).is_some();
            paths.of(&behind, pointer(slot.read(&bytes))?, &mut read)
        });
        let flags = layout.flags.and_then(|slot| slot.read(&bytes));
        Some(RunningTask {
            uid: uid.map(u32::from_le_bytes),
            kernel_thread: flags.map(TaskLayout::is_kernel_thread),
            parent,
            cgroup,
            ..named(numbers, part(layout.comm, layout.comm_bytes)?)
        })
    }
}

fn named(numbers: [u8; 8], comm: &[u8]) -> RunningTask {
    let [t0, t1, t2, t3, p0, p1, p2, p3] = numbers;
    RunningTask {
        tid: i32::from_le_bytes([t0, t1, t2, t3]),
        pid: i32::from_le_bytes([p0, p1, p2, p3]),
        comm: until_zero(comm),
        ..RunningTask::default()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use introspect::btf::synthetic::Blob;
    use introspect::{Btf, FlatMemory, SymbolTableBuilder, Unreadable};

    use super::*;

    const TASK: u64 = 0x1000;
    const PARENT: u64 = 0x1200;
    const CRED: u64 = 0x1400;
    const SET: u64 = 0x1500;
    const CGROUP: u64 = 0x1600;
    const NODE: u64 = 0x1700;
    const ROOT_NODE: u64 = 0x1740;
    const NAME: u64 = 0x1800;
    const MEMORY_BYTES: usize = 0x2000;
    /// No memory.
    const NOWHERE: u64 = 0x7fff_0000;

    fn layout() -> TaskLayout {
        let mut blob = Blob::new();
        let byte = blob.int("char", 1);
        let int = blob.int("int", 4);
        let long = blob.int("unsigned long", 8);
        let name = blob.array(byte, 16);
        let user = blob.structure("kuid_t", 4, &[("val", int, 0)]);
        blob.structure("cred", 16, &[("uid", user, 8)]);
        blob.structure("css_set", 16, &[("dfl_cgrp", long, 8)]);
        blob.structure("cgroup", 16, &[("kn", long, 8)]);
        let node = [("parent", long, 0), ("name", long, 8), ("id", long, 16)];
        blob.structure("kernfs_node", 24, &node);
        let members = [
            ("flags", int, 4),
            ("pid", int, 8),
            ("tgid", int, 12),
            ("real_parent", long, 16),
            ("cred", long, 24),
            ("comm", name, 32),
            ("cgroups", long, 0x80),
        ];
        blob.structure("task_struct", 0x100, &members);
        let mut symbols = SymbolTableBuilder::new();
        symbols.push(Gva(8), 'D', "current_task");
        let btf = Btf::parse(blob.finish()).expect("types");
        TaskLayout::new(&btf, &symbols.build()).expect("tasks")
    }

    /// Memory that counts reads, page tables included.
    struct Counted {
        flat: FlatMemory,
        reads: Cell<usize>,
    }

    impl PhysMemory for Counted {
        fn read(&self, gpa: address::Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
            self.reads.set(self.reads.get() + 1);
            self.flat.read(gpa, buf)
        }
    }

    impl Counted {
        fn put(&mut self, at: u64, bytes: &[u8]) {
            self.flat.write(address::Gpa(at), bytes).expect("memory");
        }

        fn point(&mut self, at: u64, to: u64) {
            self.put(at, &to.to_le_bytes());
        }
    }

    /// A task of user 1000 in the cgroup `/a`, whose parent is `sh` with the number 5.
    fn memory() -> Counted {
        let mut memory = Counted {
            flat: FlatMemory::zeroed(MEMORY_BYTES),
            reads: Cell::new(0),
        };
        for (task, tid, pid, comm) in [(TASK, 8, 7, &b"cat"[..]), (PARENT, 6, 5, b"sh")] {
            memory.put(task + 8, &i32::to_le_bytes(tid));
            memory.put(task + 12, &i32::to_le_bytes(pid));
            memory.put(task + 32, comm);
        }
        memory.point(TASK + 16, PARENT);
        memory.point(TASK + 24, CRED);
        memory.point(TASK + 0x80, SET);
        memory.put(CRED + 8, &1000_u32.to_le_bytes());
        memory.point(SET + 8, CGROUP);
        memory.point(CGROUP + 8, NODE);
        memory.point(NODE, ROOT_NODE);
        memory.point(NODE + 8, NAME);
        memory.point(NODE + 16, 33);
        memory.put(NAME, b"a");
        memory
    }

    /// The task, and the number of reads without page tables.
    fn read(memory: &Counted, paths: &CgroupPaths) -> (Option<RunningTask>, usize) {
        memory.reads.set(0);
        let reader = TaskReader {
            layout: &layout(),
            memory,
            // Without page tables: an address is where it says.
            paging: &PagingState::default(),
        };
        let task = reader.detailed(Gva(TASK), paths);
        (task, memory.reads.get())
    }

    fn expected() -> RunningTask {
        RunningTask {
            tid: 8,
            pid: 7,
            comm: "cat".to_owned(),
            uid: Some(1000),
            kernel_thread: Some(false),
            parent: Some(ParentTask {
                pid: 5,
                comm: "sh".to_owned(),
            }),
            cgroup: Some("/a".into()),
        }
    }

    #[test]
    fn task_has_user_parent_and_cgroup_by_seven_reads() {
        let (memory, paths) = (memory(), CgroupPaths::default());
        let (first, reads) = read(&memory, &paths);
        assert_eq!(first, Some(expected()));
        // The path takes five more, and a second look at the number.
        assert_eq!(reads, 12);
        assert_eq!(read(&memory, &paths), (Some(expected()), 7));
    }

    #[test]
    fn thread_of_the_kernel_is_one() {
        let mut memory = memory();
        memory.put(TASK + 4, &0x0020_0040_u32.to_le_bytes());
        let (task, _) = read(&memory, &CgroupPaths::default());
        assert_eq!(task.expect("a task").kernel_thread, Some(true));
    }

    #[test]
    fn part_that_cannot_be_read_is_left_out() {
        let lost = |at: u64| {
            let mut memory = memory();
            memory.point(at, NOWHERE);
            read(&memory, &CgroupPaths::default()).0.expect("a task")
        };
        let whole = expected();
        let expected = |change: fn(&mut RunningTask)| {
            let mut task = whole.clone();
            change(&mut task);
            task
        };
        assert_eq!(lost(TASK + 24), expected(|task| task.uid = None));
        assert_eq!(lost(TASK + 16), expected(|task| task.parent = None));
        for at in [TASK + 0x80, SET + 8, CGROUP + 8, NODE, NODE + 8] {
            assert_eq!(lost(at), expected(|task| task.cgroup = None), "{at:#x}");
        }
    }

    #[test]
    fn task_at_the_end_of_memory_has_its_name() {
        let mut memory = memory();
        let end = MEMORY_BYTES as u64 - 0x30;
        memory.put(end + 8, &8_i32.to_le_bytes());
        memory.put(end + 32, b"cat");
        let reader = TaskReader {
            layout: &layout(),
            memory: &memory,
            paging: &PagingState::default(),
        };
        let task = reader.detailed(Gva(end), &CgroupPaths::default());
        let task = task.expect("a task");
        assert_eq!((task.tid, &*task.comm, task.uid), (8, "cat", None));
    }

    #[test]
    fn cgroup_with_another_number_has_its_own_path() {
        let (mut memory, paths) = (memory(), CgroupPaths::default());
        let path = |memory: &Counted| read(memory, &paths).0.expect("a task").cgroup;
        assert_eq!(path(&memory).as_deref(), Some("/a"));
        memory.put(NAME, b"b");
        assert_eq!(path(&memory).as_deref(), Some("/a"), "the number is known");
        memory.point(NODE + 16, 34);
        assert_eq!(path(&memory).as_deref(), Some("/b"));
    }

    #[test]
    fn few_paths_are_kept_and_none_is_long() {
        let (mut memory, paths) = (memory(), CgroupPaths::default());
        for number in 0..3 * MAX_PATHS as u64 {
            memory.point(NODE + 16, number);
            assert!(read(&memory, &paths).0.expect("a task").cgroup.is_some());
            assert!(paths.0.load().len() <= MAX_PATHS);
        }
        // Six names of 255 bytes.
        let name = [b'a'; 255];
        memory.put(NAME, &name);
        for above in 0..6 {
            let node = 0x1900 + 0x20 * above;
            memory.point(node, if above == 5 { ROOT_NODE } else { node + 0x20 });
            memory.point(node + 8, NAME);
        }
        memory.point(NODE, 0x1900);
        memory.point(NODE + 16, u64::MAX);
        assert_eq!(read(&memory, &paths).0.expect("a task").cgroup, None);
    }
}
