//! Watched data of tasks in stock kernels: from the start of a process to its end, and again for the next process of the number.

use events::{DataWrite, Hit, ProbeState};

use crate::boot::{Boot, Ran, Stock, probe};
use crate::watch::{assert_chained, writes};

/// `renice` sets the priorities of two processes: the first of the guest, and one that the script starts twice.
const FIRST: &str = "watch:struct task_struct.static_prio@pid:1";
const LATER: &str = "watch:struct task_struct.static_prio@pid:4000";
/// The kernel writes the run time at each tick, and when the process blocks.
const RUNTIME: &str = "watch:struct task_struct.se.sum_exec_runtime@pid:1";
/// No process has the number.
const NEVER: &str = "watch:struct task_struct.static_prio@pid:4100000";
/// The priority of a process with the nice value 0.
const DEFAULT_PRIORITY: u64 = 120;
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc
$b mount -t proc proc /proc
$b renice -n 3 -p 1 || echo no renice
start() {
    for attempt in 1 2 3 4 5 6 7 8; do
        echo 3999 >/proc/sys/kernel/ns_last_pid
        $b sh -c '
            [ $$ = 4000 ] || exit 1
            for time in 1 2 3; do
                /bin/busybox renice -n 5 -p $$
            done' && return
    done
    echo number taken
}
start
for i in 1 2 3 4 5 6 7 8; do
    ($b cat /proc/version >/dev/null) &
    ($b cat /proc/version >/dev/null) &
    wait
done
start
# The kernel frees the struct of a process after a grace period of RCU. The probe is gone from then on.
$b sleep 2
$b poweroff -f
"#;
const EXPECTED: &str = "[[expect]]
probe = 'watch:struct task_struct.static_prio@pid:4000'
exactly = 6
[[expect]]
probe = 'watch:struct task_struct.static_prio@pid:4100000'
never = true
";

fn values(writes: &[(Hit, DataWrite)]) -> Vec<(u64, u64)> {
    let values = writes.iter();
    values
        .map(|(_, write)| (write.old.0, write.new.0))
        .collect()
}

fn check_counts(ran: &Ran) {
    let summary = ran.summary();
    let states = [FIRST, LATER, RUNTIME, NEVER].map(|name| {
        let summed = probe(&summary, name);
        assert!(summed.missed.is_empty(), "{summed:?}");
        assert_eq!(summed.hits, writes(ran, name).len() as u64, "{summed:?}");
        summed.state
    });
    use ProbeState::{Armed, Gone, Pending};
    assert_eq!(states, [Armed, Gone, Armed, Pending]);
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT).cpus(2);
    let boot = boot.expecting(EXPECTED).probe(FIRST).probe(LATER);
    let ran = boot.probe(RUNTIME).probe(NEVER).run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    for complaint in ["no renice", "number taken"] {
        assert!(!ran.console.contains(complaint), "{}", ran.console);
    }
    check_counts(&ran);
    assert_eq!(
        values(&writes(&ran, FIRST)),
        [(DEFAULT_PRIORITY, DEFAULT_PRIORITY + 3)]
    );
    // A child has the nice value of its parent.
    let set: Vec<(u64, u64)> = [(3, 8), (8, 13), (13, 18)]
        .map(|(old, new)| (DEFAULT_PRIORITY + old, DEFAULT_PRIORITY + new))
        .into();
    let later = writes(&ran, LATER);
    assert_eq!(values(&later), set.repeat(2));
    for (hit, write) in &later {
        assert!(hit.symbol.starts_with("set_user_nice"), "{hit:?}");
        assert_eq!((write.bytes, write.offset), (4, 0), "{write:?}");
        let task = hit.task.as_ref().expect("a task");
        assert_ne!(task.pid, 4000, "{hit:?}");
    }
    let runtime = writes(&ran, RUNTIME);
    assert!(runtime.len() > 20, "{}", runtime.len());
    assert_chained(RUNTIME, &runtime);
    for (_, write) in &runtime {
        assert!(write.new.0 >= write.old.0, "{write:?}");
    }
}

#[test]
fn writes_to_tasks_of_debian_5_10_are_those_of_the_workload() {
    check("debian-5.10");
}

#[test]
fn writes_to_tasks_of_debian_6_1_are_those_of_the_workload() {
    check("debian-6.1");
}

#[test]
fn writes_to_tasks_of_debian_6_12_are_those_of_the_workload() {
    check("debian-6.12");
}

#[test]
fn writes_to_tasks_of_debian_sid_are_those_of_the_workload() {
    check("debian-sid");
}
