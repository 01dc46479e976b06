//! Reads a task in guest memory.
//!
//! ```text
//!  task_struct ──▶ numbers, name, flags, and pointers to
//!                    cred         ── one read ───▶ uid
//!                    real_parent  ── two reads ──▶ number and name
//!                    css_set      ── three reads ▶ number of the cgroup ──▶ path, read at the first hit in the cgroup
//! ```
//!
//! Every event pays for these reads, so members are read alone: a `task_struct` takes 10 KiB, the members some 60 bytes. Most of them
//! are in the page read last, which takes no other page walk.
//!
//! The guest may change all of it at any time, and may lie: a part that cannot be read is left out.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use address::{Gpa, Gva};
use arc_swap::ArcSwap;
use introspect::btf::Slot;
use introspect::tasks::{CgroupLayout, MAX_COMM_BYTES, ReadAt};
use introspect::{PagingState, PhysMemory, TaskLayout, Translation, read_virt, walk};

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
    layout: &'r TaskLayout,
    memory: &'r M,
    paging: &'r PagingState,
    /// The page read last: the virtual address and the translation of a byte in it.
    last: Cell<Option<(Gva, Translation)>>,
}

impl<M: ?Sized> fmt::Debug for TaskReader<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskReader")
            .field("layout", &self.layout)
            .field("paging", &self.paging)
            .finish_non_exhaustive()
    }
}

impl<'r, M: PhysMemory + ?Sized> TaskReader<'r, M> {
    /// A reader of the tasks with the members at `layout`, in the physical `memory` behind the page tables `paging`.
    pub const fn new(layout: &'r TaskLayout, memory: &'r M, paging: &'r PagingState) -> Self {
        Self {
            layout,
            memory,
            paging,
            last: Cell::new(None),
        }
    }

    /// The physical address of the `len` bytes at `at`; `None` if they are not in one page.
    fn translate(&self, at: Gva, len: usize) -> Option<Gpa> {
        let known = self.last.get().and_then(|(gva, page)| page.moved(gva, at));
        let page = match known {
            Some(page) => page,
            None => walk(self.memory, self.paging, at).ok()?,
        };
        self.last.set(Some((at, page)));
        (len as u64 <= page.bytes_left_in_page()).then_some(page.gpa)
    }

    fn fill(&self, at: Gva, bytes: &mut [u8]) -> Option<()> {
        match self.translate(at, bytes.len()) {
            Some(gpa) => self.memory.read(gpa, bytes).ok(),
            None => read_virt(self.memory, self.paging, at, bytes).ok(),
        }
    }

    fn word(&self, at: Gva) -> Option<u64> {
        match self.translate(at, size_of::<u64>()) {
            Some(gpa) => self.memory.read_u64(gpa).ok(),
            None => {
                let mut bytes = [0; size_of::<u64>()];
                self.fill(at, &mut bytes)?;
                Some(u64::from_le_bytes(bytes))
            }
        }
    }

    /// The number at `slot` of the struct at `at`.
    fn number(&self, at: Gva, slot: Slot) -> Option<u64> {
        let at = at.wrapping_add(slot.at() as u64);
        if slot.size() == size_of::<u64>() {
            return self.word(at);
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

    /// The numbers and the name of the task at `task`.
    pub fn named(&self, task: Gva) -> Option<RunningTask> {
        let numbers = self.word(task.wrapping_add(self.layout.tid))?;
        let mut comm = [0; MAX_COMM_BYTES];
        let comm = comm.get_mut(..self.layout.comm_bytes)?;
        self.fill(task.wrapping_add(self.layout.comm), comm)?;
        let [t0, t1, t2, t3, p0, p1, p2, p3] = numbers.to_le_bytes();
        Some(RunningTask {
            tid: i32::from_le_bytes([t0, t1, t2, t3]),
            pid: i32::from_le_bytes([p0, p1, p2, p3]),
            comm: until_zero(comm),
            ..RunningTask::default()
        })
    }

    /// All that is known of the task at `task`.
    pub fn detailed(&self, task: Gva, paths: &CgroupPaths) -> Option<RunningTask> {
        let layout = self.layout;
        let named = self.named(task)?;
        let flags = layout.flags.and_then(|flags| self.number(task, flags));
        let cred = layout.user.and_then(|user| self.pointer(task, user.cred));
        let parent = layout.parent.and_then(|slot| self.pointer(task, slot));
        let set = layout.cgroup.and_then(|(slot, _)| self.pointer(task, slot));
        let uid = layout
            .user
            .zip(cred)
            .and_then(|(user, cred)| u32::try_from(self.number(cred, user.uid)?).ok());
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
    const MEMORY_BYTES: usize = 0x6000;
    /// The page tables: a page of 2 MiB, at its own physical address.
    const TABLES: [u64; 3] = [0x3000, 0x4000, 0x5000];
    /// No memory.
    const OUTSIDE_MEMORY: u64 = 0x7fff_0000;

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

    /// The task at `task`, without page tables: an address is where it says.
    fn task_at(memory: &Counted, task: u64, paths: &CgroupPaths) -> Option<RunningTask> {
        TaskReader::new(&layout(), memory, &PagingState::default()).detailed(Gva(task), paths)
    }

    fn read(memory: &Counted, paths: &CgroupPaths) -> Option<RunningTask> {
        task_at(memory, TASK, paths)
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
    fn task_has_user_parent_and_cgroup_by_twelve_reads_and_one_page_walk() {
        let (mut memory, paths) = (memory(), CgroupPaths::default());
        let (present, is_page) = (1, 1 << 7);
        memory.point(TABLES[0], TABLES[1] | present);
        memory.point(TABLES[1], TABLES[2] | present);
        memory.point(TABLES[2], present | is_page);
        let paging = PagingState::four_level(TABLES[0]);
        let layout = layout();
        let read = || {
            memory.reads.set(0);
            let task = TaskReader::new(&layout, &memory, &paging).detailed(Gva(TASK), &paths);
            (task, memory.reads.get() - TABLES.len())
        };
        // The path takes four reads, and there is a second look at the number.
        assert_eq!(read(), (Some(expected()), 17));
        assert_eq!(read(), (Some(expected()), 12));
    }

    #[test]
    fn name_that_crosses_pages_is_read_from_both() {
        let mut memory = memory();
        let task = 0x2000 - 40;
        memory.put(task + 8, &i32::to_le_bytes(8));
        memory.put(task + 32, b"a long name");
        let task = task_at(&memory, task, &CgroupPaths::default()).expect("a task");
        assert_eq!((task.tid, &*task.comm), (8, "a long name"));
    }

    #[test]
    fn thread_of_the_kernel_is_one() {
        let mut memory = memory();
        memory.put(TASK + 4, &0x0020_0040_u32.to_le_bytes());
        let task = read(&memory, &CgroupPaths::default()).expect("a task");
        assert_eq!(task.kernel_thread, Some(true));
    }

    #[test]
    fn part_that_cannot_be_read_is_left_out() {
        let lost = |at: u64| {
            let mut memory = memory();
            memory.point(at, OUTSIDE_MEMORY);
            read(&memory, &CgroupPaths::default()).expect("a task")
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
        let task = task_at(&memory, end, &CgroupPaths::default()).expect("a task");
        assert_eq!((task.tid, &*task.comm, task.uid), (8, "cat", None));
    }

    #[test]
    fn cgroup_with_another_number_has_its_own_path() {
        let (mut memory, paths) = (memory(), CgroupPaths::default());
        let path = |memory: &Counted| read(memory, &paths).expect("a task").cgroup;
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
            assert!(read(&memory, &paths).expect("a task").cgroup.is_some());
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
        assert_eq!(read(&memory, &paths).expect("a task").cgroup, None);
    }
}
