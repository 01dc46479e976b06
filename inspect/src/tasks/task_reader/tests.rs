//! Tests of reading tasks, in memory that counts reads.

use std::cell::Cell;

use introspect::btf::synthetic::Blob;
use introspect::{Btf, FlatMemory, PagingState, SymbolTableBuilder, Unreadable};

use super::super::cgroup_paths::MAX_PATHS;
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
    let walks = Walks::new(PagingState::default());
    TaskReader::new(&layout(), memory, &walks).detailed(Gva(task), paths)
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
        let walks = Walks::new(paging);
        let task = TaskReader::new(&layout, &memory, &walks).detailed(Gva(TASK), &paths);
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
