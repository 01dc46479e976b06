//! The user, the parent and the cgroup of the task at a hit, compared with what the guest itself says.

use events::{Hit, ParentTask, Task, Tier};
use manifest::GuestEnd;

use crate::boot::{Boot, Stock, probe};
use crate::tracepoints::number;

/// Each hit exits, because of the string.
const OPEN: &str = "kprobe:do_sys_openat2";
const OPENED: &str = "kretprobe:do_sys_openat2";
/// A detour writes records.
const READ: &str = "kprobe:vfs_read";
/// The first function of most threads of the kernel.
const THREAD: &str = "kprobe:kthread";
/// A user without a name.
const USER: u32 = 1234;
const CGROUP: &str = "/outer/inner";
/// The name of the shell that starts the program.
const SHELL: &str = "ash";
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /etc /cgroup
$b ln -s /bin/busybox /bin/sh
$b ln -s /bin/busybox /bin/ash
echo 'user:x:1234:1234::/:/bin/sh' >/etc/passwd
echo 'user:x:1234:' >/etc/group
$b mount -t cgroup2 cgroup2 /cgroup
$b mkdir -p /cgroup/outer/inner
for i in 1 2 3 4 5 6 7 8; do
    $b cat /init >/dev/null
done
/bin/ash -c 'echo $$ >/cgroup/outer/inner/cgroup.procs
echo parent $$
/bin/busybox su user -c "echo child \$\$; exec /bin/busybox dd if=/init bs=77 count=3"
echo end'
$b poweroff -f
"#;

fn of<'h>(hits: &'h [Hit], name: &str) -> Vec<(&'h Hit, &'h Task)> {
    let hits = hits.iter().filter(|hit| &*hit.probe == name);
    hits.map(|hit| (hit, hit.task.as_ref().expect("a task")))
        .collect()
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT);
    let boot = boot.probe(OPEN).probe(OPENED).probe(READ).probe(THREAD);
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    ran.assert_well();
    let hits = ran.hits();

    // An exit knows all of it.
    let pid = |word| i32::try_from(number(&ran, word)).expect("a process");
    let (child, parent) = (pid("child "), pid("parent "));
    let expected = Task {
        tid: child,
        pid: child,
        comm: "busybox".to_owned(),
        uid: Some(USER),
        kernel_thread: Some(false),
        parent: Some(ParentTask {
            pid: parent,
            comm: SHELL.to_owned(),
        }),
        cgroup: Some(CGROUP.into()),
    };
    let opens = of(&hits, OPEN);
    let open = opens.iter().rev().find(|(_, task)| task.pid == child);
    let (_, task) = open.unwrap_or_else(|| panic!("{}", ran.report()));
    assert_eq!(**task, expected);
    let returns = ran.returns();
    let mut returned = returns.iter().filter_map(|call| call.task.as_ref());
    assert!(
        returned.any(|task| task.pid == child && task.uid == Some(USER)),
        "{}",
        ran.report()
    );
    // The other tasks are root's, and in the root of the cgroups.
    let is_init = |task: &Task| task.pid == 1 && task.cgroup.as_deref() == Some("/");
    assert!(
        opens
            .iter()
            .any(|(_, task)| is_init(task) && task.uid == Some(0)),
        "{}",
        ran.report()
    );

    // A record knows the user, and neither the parent nor the cgroup; it has no exit.
    let read = probe(&summary, READ);
    assert_eq!(read.tier, Some(Tier::Optimised), "{read:?}");
    assert!(read.exits < read.hits, "{read:?}");
    let reads = of(&hits, READ);
    let (exits, records): (Vec<_>, Vec<_>) =
        reads.iter().partition(|(_, task)| task.parent.is_some());
    assert_eq!(exits.len() as u64, read.exits, "{read:?}");
    assert!(records.iter().all(|(_, task)| task.cgroup.is_none()));
    let by_child: Vec<_> = records
        .iter()
        .filter(|(_, task)| task.pid == child)
        .collect();
    assert!(!by_child.is_empty(), "{}", ran.report());
    for (hit, task) in by_child {
        let user = (task.uid, task.kernel_thread);
        assert!(
            [(Some(0), Some(false)), (Some(USER), Some(false))].contains(&user),
            "{hit:?}"
        );
    }
    let is_user = |task: &Task| task.uid == Some(USER) && task.pid == child;
    assert!(
        records.iter().any(|(_, task)| is_user(task)),
        "{}",
        ran.report()
    );

    // A thread of the kernel, started by kthreadd.
    let threads = of(&hits, THREAD);
    let is_thread = |task: &Task| {
        let parent = task.parent.as_ref();
        task.kernel_thread == Some(true)
            && task.uid == Some(0)
            && parent.is_some_and(|parent| parent.pid == 2 && parent.comm == "kthreadd")
    };
    assert!(
        threads.iter().any(|(_, task)| is_thread(task)),
        "{threads:?}"
    );
    assert!(
        threads
            .iter()
            .all(|(_, task)| task.kernel_thread != Some(false)),
        "{threads:?}"
    );
}

#[test]
fn tasks_of_debian_5_10_have_user_parent_and_cgroup() {
    check("debian-5.10");
}

#[test]
fn tasks_of_debian_6_1_have_user_parent_and_cgroup() {
    check("debian-6.1");
}

#[test]
fn tasks_of_debian_6_12_have_user_parent_and_cgroup() {
    check("debian-6.12");
}

#[test]
fn tasks_of_debian_sid_have_user_parent_and_cgroup() {
    check("debian-sid");
}
