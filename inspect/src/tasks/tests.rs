use address::Gva;
use introspect::btf::synthetic::Blob;
use proptest::prelude::*;

use super::*;
use crate::fake::{Fake, at};
use crate::{NotReadable, ReadsError};

const TASK_BYTES: u64 = 0x100;
/// The places of tasks, and of what belongs to the task of the same number.
const TASKS: u64 = 0x1000;
const SIGNALS: u64 = 0x3000;
const CREDS: u64 = 0x4000;
const STRINGS: u64 = 0x5000;
const WORKER: u64 = 0x5800;
const CSS_SET: u64 = 0x6000;
const LINKS: u64 = 0x10;
const THREADS: u64 = 0x20;
const COMM: u64 = 0x80;

fn types() -> Blob {
    let mut blob = Blob::new();
    let char = blob.int("char", 1);
    let int = blob.int("int", 4);
    let long = blob.int("unsigned long", 8);
    let pointer = blob.pointer(char);
    let list = blob.structure(
        "list_head",
        16,
        &[("next", pointer, 0), ("prev", pointer, 8)],
    );
    let comm = blob.array(char, 16);
    let user = blob.structure("kuid_t", 4, &[("val", int, 0)]);
    blob.structure("cred", 16, &[("uid", user, 0), ("euid", user, 8)]);
    blob.structure("signal_struct", 32, &[("thread_head", list, 16)]);
    blob.structure(
        "kthread",
        24,
        &[("data", pointer, 0), ("full_name", pointer, 8)],
    );
    let desc = blob.array(char, 32);
    let worker = [
        ("current_work", pointer, 0),
        ("pool", pointer, 8),
        ("desc", desc, 16),
        ("rescue_wq", pointer, 48),
    ];
    blob.structure("worker", 56, &worker);
    blob.structure("workqueue_struct", 40, &[("name", desc, 8)]);
    let head = blob.structure(
        "callback_head",
        16,
        &[("next", pointer, 0), ("func", pointer, 8)],
    );
    blob.structure("css_set", 16, &[("dfl_cgrp", pointer, 8)]);
    blob.structure("cgroup", 16, &[("kn", pointer, 8)]);
    blob.structure(
        "kernfs_node",
        16,
        &[("__parent", pointer, 0), ("name", pointer, 8)],
    );
    let task = [
        ("__state", int, 0),
        ("flags", int, 4),
        ("exit_state", int, 8),
        ("tasks", list, 0x10),
        ("thread_node", list, 0x20),
        ("pid", int, 0x30),
        ("tgid", int, 0x34),
        ("real_parent", pointer, 0x38),
        ("real_cred", pointer, 0x40),
        ("signal", pointer, 0x48),
        ("mm", pointer, 0x50),
        ("cgroups", pointer, 0x58),
        ("worker_private", pointer, 0x60),
        ("group_leader", pointer, 0x68),
        ("rcu", head, 0x70),
        ("comm", comm, 0x80),
        ("rest", long, 0xf8),
    ];
    blob.structure("task_struct", 0x100, &task);
    blob
}

fn place(task: u64) -> u64 {
    TASKS + task * TASK_BYTES
}

/// The swapper, and `tasks` as number, process, parent and name. Each process is in the list of the swapper, each thread in that of its
/// process.
fn kernel(tasks: &[(u32, u32, u64, &str)]) -> Fake {
    let mut fake = Fake::new(types(), 0x8000, &[("init_task", place(0))]);
    let mut last = place(0) + LINKS;
    fake.point(last, last);
    for (number, (tid, pid, parent, comm)) in (1..).zip(tasks) {
        let task = place(number);
        fake.put(task + 0x30, &tid.to_le_bytes());
        fake.put(task + 0x34, &pid.to_le_bytes());
        fake.point(task + 0x38, place(*parent));
        fake.point(task + 0x40, CREDS + number * 16);
        fake.put(CREDS + number * 16, &1000_u32.to_le_bytes());
        fake.put(CREDS + number * 16 + 8, &7_u32.to_le_bytes());
        fake.put(task + COMM, comm.as_bytes());
        let signal = SIGNALS + u64::from(*pid) * 32;
        fake.point(task + 0x48, signal);
        let head = signal + 16;
        if tid == pid {
            fake.point(last, task + LINKS);
            last = task + LINKS;
            fake.point(last, place(0) + LINKS);
            fake.point(head, task + THREADS);
        } else {
            fake.point(place(number - 1) + THREADS, task + THREADS);
        }
        fake.point(task + THREADS, head);
    }
    fake
}

fn read(fake: &Fake, threads: bool) -> Result<Vec<Task>, TaskListError> {
    let view = fake.view();
    TaskList::new(&view)?.read(&view, threads)
}

const SOME: [(u32, u32, u64, &str); 3] = [(1, 1, 0, "init"), (5, 5, 1, "many"), (6, 5, 1, "other")];

#[test]
fn processes_are_listed_and_threads_on_demand() {
    let mut fake = kernel(&SOME);
    fake.put(place(2), &[1]);
    let tasks = read(&fake, false).expect("tasks");
    let many = Task {
        tid: 5,
        pid: 5,
        parent: 1,
        comm: "many".to_owned(),
        uid: 1000,
        euid: 7,
        state: 'S',
        kernel_thread: false,
        cgroup: None,
        command_line: Vec::new(),
    };
    assert_eq!(tasks.len(), 2);
    assert_eq!((tasks[0].pid, tasks[0].parent, tasks[0].state), (1, 0, 'R'));
    assert_eq!(tasks[1], many);
    let threads = read(&fake, true).expect("tasks");
    assert_eq!(threads.len(), 3);
    assert_eq!(threads[1], many);
    let view = fake.view();
    let list = TaskList::new(&view).expect("a list");
    // The credentials of a thread may be anything.
    let brief = list.threads(&view).expect("threads");
    let numbers = brief.iter().map(|thread| (thread.at, thread.tid));
    let expected = [(1, 1), (2, 5), (3, 6)].map(|(number, tid)| (at(place(number)), tid));
    assert!(numbers.eq(expected), "{brief:?}");
    assert_eq!(
        (threads[2].pid, threads[2].tid, &*threads[2].comm),
        (5, 6, "other")
    );
}

#[test]
fn kernel_threads_have_their_whole_names() {
    let mut fake = kernel(&[
        (2, 2, 0, "kthreadd"),
        (3, 3, 1, "a_thread_with_a"),
        (4, 4, 1, "kworker/0:1"),
    ]);
    for number in 1..=3 {
        fake.put(place(number) + 4, &0x0020_0000_u32.to_le_bytes());
    }
    let (named, works) = (STRINGS, STRINGS + 0x40);
    fake.point(place(2) + 0x60, named);
    fake.point(named + 8, named + 24);
    fake.put(named + 24, b"a_thread_with_a_name\0");
    fake.put(place(3) + 4, &0x0020_0020_u32.to_le_bytes());
    fake.point(place(3) + 0x60, works);
    fake.point(works, WORKER);
    fake.point(WORKER + 8, WORKER);
    fake.put(WORKER + 16, b"events\0");
    let names = |fake: &Fake| {
        let tasks = read(fake, false).expect("tasks");
        assert!(tasks.iter().all(|task| task.kernel_thread));
        tasks.into_iter().map(|task| task.comm).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&fake),
        ["kthreadd", "a_thread_with_a_name", "kworker/0:1-events"]
    );
    fake.point(WORKER, WORKER);
    assert_eq!(names(&fake)[2], "kworker/0:1+events");
    // A rescuer has the name of its workqueue.
    fake.put(place(3) + COMM, b"kworker/R-a_lon\0");
    fake.put64(WORKER + 8, 0);
    fake.point(WORKER + 48, WORKER + 0x80);
    fake.put(WORKER + 0x88, b"a_long_queue\0");
    assert_eq!(names(&fake)[2], "kworker/R-a_long_queue");
}

#[test]
fn cgroups_have_paths() {
    let mut fake = kernel(&SOME);
    fake.point(place(1) + 0x58, CSS_SET);
    fake.point(CSS_SET + 8, CSS_SET + 16);
    let node = CSS_SET + 64;
    fake.point(CSS_SET + 24, node);
    let path = |fake: &Fake| read(fake, false).expect("tasks")[0].cgroup.clone();
    assert_eq!(path(&fake).as_deref(), Some("/"));
    for (number, name) in [(0, &b"inner\0"[..]), (1, b"outer\0")] {
        fake.point(node + number * 16, node + (number + 1) * 16);
        fake.point(node + number * 16 + 8, STRINGS + number * 16);
        fake.put(STRINGS + number * 16, name);
    }
    assert_eq!(path(&fake).as_deref(), Some("/outer/inner"));
    // A circle has no path.
    fake.point(node, node);
    assert_eq!(path(&fake), None);
}

#[test]
fn command_lines_are_read_through_the_programs_page_tables() {
    let mut blob = types();
    let long = blob.int("unsigned long", 8);
    let memory = [
        ("pgd", long, 0),
        ("arg_start", long, 8),
        ("arg_end", long, 16),
    ];
    blob.structure("mm_struct", 24, &memory);
    let other = kernel(&SOME);
    let symbols = [("init_task", place(0)), ("page_offset_base", 8)];
    let mut fake = Fake::new(blob, 0x10000, &symbols);
    fake.put(0, &other.bytes);
    // The direct map begins at the memory's start.
    fake.point(8, 0);
    let [root, third, second, first, page] = [0x9000_u64, 0xa000, 0xb000, 0xc000, 0xd000];
    let mm = 0x7000;
    fake.point(place(1) + 0x50, mm);
    fake.point(mm, root);
    fake.put64(mm + 8, 0x10ff0);
    fake.put64(mm + 16, 0x10ff0 + 12);
    for (table, entry) in [(root, third), (third, second), (second, first)] {
        fake.put64(table, entry | 7);
    }
    fake.put64(first + 0x10 * 8, page | 7);
    fake.put(page + 0xff0, b"/init\0a b\0c\0");
    let words = |fake: &Fake| read(fake, false).expect("tasks")[0].command_line.clone();
    assert_eq!(words(&fake), ["/init", "a b", "c"]);
    // The next page is not in memory.
    fake.put64(mm + 16, 0x20000);
    assert_eq!(words(&fake)[0], "/init");
    fake.put64(first + 0x10 * 8, 0);
    assert!(words(&fake).is_empty());
}

#[test]
fn texts_of_all_tasks_have_a_limit() {
    let mut fake = kernel(&SOME);
    fake.point(place(1) + 0x58, CSS_SET);
    fake.point(CSS_SET + 8, CSS_SET + 16);
    // A chain of cgroups, each with a long name, for a circle of tasks.
    let nodes = STRINGS + 0x200;
    fake.point(CSS_SET + 24, nodes);
    for number in 0..60 {
        fake.point(nodes + number * 16, nodes + (number + 1) * 16);
        fake.point(nodes + number * 16 + 8, STRINGS);
    }
    fake.put(STRINGS, &[b'x'; 200]);
    fake.point(place(1) + LINKS, place(1) + LINKS);
    let limit = 64 << 20;
    let error = read(&fake, false).expect_err("endless");
    assert_eq!(error, TaskListError::TooLong { limit });
}

#[test]
fn broken_lists_are_refused() {
    let error = |change: &dyn Fn(&mut Fake)| {
        let mut fake = kernel(&SOME);
        change(&mut fake);
        read(&fake, true).expect_err("broken")
    };
    assert_eq!(error(&|fake| fake.types = None), TaskListError::NoTypes);
    let limit = 64 << 10;
    let circle = |fake: &mut Fake| fake.point(place(1) + LINKS, place(1) + LINKS);
    assert_eq!(error(&circle), TaskListError::Endless { limit });
    let threads = |fake: &mut Fake| fake.point(place(3) + THREADS, place(2) + THREADS);
    assert_eq!(error(&threads), TaskListError::Endless { limit });
    let gone = error(&|fake| fake.put64(place(2) + 0x40, 0));
    let source = ReadsError::NotReadable(NotReadable { at: Gva(0), len: 4 });
    let what = "credentials";
    let at = at(place(2));
    assert_eq!(gone, TaskListError::Unreadable { what, at, source });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_damage_breaks_the_reader(
        damage in proptest::collection::vec((0_u64..0x7000, any::<u8>()), 0..64),
    ) {
        let mut fake = kernel(&SOME);
        for (at, byte) in damage {
            fake.put(at, &[byte]);
        }
        let _ = read(&fake, true);
    }
}

#[test]
fn first_thread_of_a_process_is_found_by_its_number() {
    // The thread with the number 6 is of the process 5.
    let mut fake = kernel(&SOME);
    fake.point(place(1) + 0x68, place(1));
    fake.point(place(2) + 0x68, place(3));
    let view = fake.view();
    let types = view.types().expect("types");
    let first = FirstThreads::new(types).expect("a layout");
    let found = first.find(&view, &[1, 5, 6, 7].into()).expect("a list");
    assert_eq!(found, [(1, at(place(1))), (5, at(place(2)))].into());
    let found = first.find(&view, &[5].into()).expect("a list");
    assert_eq!(found, [(5, at(place(2)))].into());
    let of = [1, 2, 3].map(|task| first.process_of(&view, at(place(task))));
    assert_eq!(of, [Some(1), Some(5), None]);
    let is_replaced = [1, 2].map(|task| first.is_replaced(&view, at(place(task))));
    assert_eq!(is_replaced, [false, true]);
    assert_eq!(first.task_of(at(place(2) + 0x70)), at(place(2)));
    let nowhere = at(0x10_0000);
    assert!(!first.is_replaced(&view, nowhere));
    assert_eq!(first.process_of(&view, nowhere), None);
}

#[test]
fn first_thread_of_a_broken_list_is_an_error() {
    let mut fake = kernel(&SOME);
    fake.point(place(1) + LINKS, place(1) + LINKS);
    let view = fake.view();
    let types = view.types().expect("types");
    let first = FirstThreads::new(types).expect("a layout");
    assert!(matches!(
        first.find(&view, &[5].into()),
        Err(TaskListError::Endless { .. })
    ));
}
