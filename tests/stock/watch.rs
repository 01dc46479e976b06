//! Watched variables of stock kernels: each write of a workload, with both values and the writer.

use std::collections::BTreeSet;

use events::{DataRead, DataWrite, Hit, ProbeState};
use manifest::GuestEnd;

use crate::boot::{Boot, Ran, Stock, probe};
use crate::tracepoints::number;

/// The sysctl `kernel.panic`, an `int`.
const SYSCTL: &str = "watch:panic_timeout";
/// The kernel counts its forks, and says their number in `/proc/stat`.
const FORKS: &str = "watch:total_forks";
/// Written by timer interrupts, many times a second.
const TICKS: &str = "watch:jiffies_64";
const WRITES: u64 = 20;
/// The command line sets the variable, too.
const EXPECTED: &str = "[[expect]]
probe = 'watch:panic_timeout'
exactly = 21
[[expect]]
probe = 'watch:total_forks'
at_least = 16
";

const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc
$b mount -t proc proc /proc
i=1
while [ $i -le 20 ]; do
    echo $i >/proc/sys/kernel/panic
    i=$((i + 1))
done
echo writer $$
for i in 1 2 3 4 5 6 7 8; do
    ($b cat /proc/version >/dev/null) &
    ($b cat /proc/version >/dev/null) &
    wait
done
echo forks $($b sed -n 's/^processes //p' /proc/stat)
$b poweroff -f
"#;

pub(crate) fn writes(ran: &Ran, name: &str) -> Vec<(Hit, DataWrite)> {
    let hits = ran.hits().into_iter().filter(|hit| &*hit.probe == name);
    let with_write = hits.map(|hit| {
        let write = hit.write.expect("a write");
        (hit, write)
    });
    with_write.collect()
}

/// Asserts that each write has found the value that the write before has left: none was missed.
pub(crate) fn assert_chained(name: &str, writes: &[(Hit, DataWrite)]) {
    for (before, after) in writes.iter().zip(&writes[1..]) {
        assert_eq!(before.1.new, after.1.old, "{name}: {before:?} {after:?}");
    }
}

/// `cat` reads the sysctl's value once. The command line sets it, too, before.
const READS: &str = "watch:panic_timeout:rw";
const EXPECTED_READS: &str = "[[expect]]
probe = 'watch:panic_timeout:rw'
exactly = 41
[[expect]]
probe = 'watch:panic_timeout:rw'
only = [-1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
[[expect]]
probe = 'watch:panic_timeout:rw'
only_by = ['kstrtoint', '*proc_dointvec*']
";
const READ_SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc
$b mount -t proc proc /proc
i=1
while [ $i -le 20 ]; do
    echo $i >/proc/sys/kernel/panic
    [ $($b cat /proc/sys/kernel/panic) = $i ] || echo wrong value
    i=$((i + 1))
done
$b poweroff -f
"#;

fn check_reads(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, READ_SCRIPT).cpus(2);
    let boot = boot.expecting(EXPECTED_READS).probe(READS);
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    assert!(!ran.console.contains("wrong value"), "{}", ran.console);
    let summary = ran.summary();
    let summed = probe(&summary, READS);
    assert!(summed.missed.is_empty(), "{summed:?}");
    println!("{image}: {} exits for {} hits", summed.exits, summed.hits);
    let hits = ran.hits();
    let (at_boot, by_script) = hits.split_first().expect("41 hits");
    assert!(at_boot.write.is_some(), "{at_boot:?}");
    let accesses = by_script.iter().map(|hit| (hit.write, hit.read));
    let accesses: Vec<(Option<DataWrite>, Option<DataRead>)> = accesses.collect();
    for (round, pair) in (1..).zip(accesses.chunks(2)) {
        let [(Some(write), None), (None, Some(read))] = pair else {
            panic!("{pair:?}");
        };
        assert_eq!((write.new.0, read.value.0), (round, round));
        assert_eq!((read.at, read.bytes), (write.at, 4));
    }
    for hit in hits.iter().filter(|hit| hit.read.is_some()) {
        assert!(hit.symbol.contains("proc_dointvec"), "{hit:?}");
        let task = hit.task.as_ref().expect("a task");
        assert_eq!(task.comm, "busybox", "{hit:?}");
    }
}

#[test]
fn reads_of_a_variable_of_debian_6_1_are_those_of_the_workload() {
    check_reads("debian-6.1");
}

/// A parameter of the module, an `int`.
const PARAMETER: &str = "watch:sch_htb:htb_hysteresis:4";
const EXPECTED_IN_MODULE: &str = "[[expect]]
probe = 'watch:sch_htb:htb_hysteresis:4'
exactly = 12
";
/// Loads the module three times; the parameter is 0 then.
const MODULE_SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /sys
$b mount -t sysfs sysfs /sys
for load in 1 2 3; do
    $b insmod /sch_htb.ko || echo no module
    for i in 1 2 3 4; do
        echo $i >/sys/module/sch_htb/parameters/htb_hysteresis
    done
    [ $($b cat /sys/module/sch_htb/parameters/htb_hysteresis) = 4 ] || echo wrong value
    $b rmmod sch_htb || echo stays
done
$b poweroff -f
"#;

fn check_in_module(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, MODULE_SCRIPT).cpus(2);
    let boot = boot.modules(&["sch_htb"]).expecting(EXPECTED_IN_MODULE);
    let ran = boot.probe(PARAMETER).run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    for complaint in ["no module", "wrong value", "stays"] {
        assert!(!ran.console.contains(complaint), "{}", ran.console);
    }
    let summary = ran.summary();
    let summed = probe(&summary, PARAMETER);
    assert!(summed.missed.is_empty(), "{summed:?}");
    assert_eq!(summed.state, ProbeState::Gone, "{summed:?}");
    let values: Vec<(u64, u64)> = writes(&ran, PARAMETER)
        .into_iter()
        .map(|(_, write)| (write.old.0, write.new.0))
        .collect();
    let of_load: Vec<(u64, u64)> = (1..=4).map(|value| (value - 1, value)).collect();
    assert_eq!(values, of_load.repeat(3));
}

#[test]
fn writes_to_a_module_of_debian_5_10_are_those_of_the_workload_in_each_load() {
    check_in_module("debian-5.10");
}

#[test]
fn writes_to_a_module_of_debian_6_1_are_those_of_the_workload_in_each_load() {
    check_in_module("debian-6.1");
}

#[test]
fn writes_to_a_module_of_debian_6_12_are_those_of_the_workload_in_each_load() {
    check_in_module("debian-6.12");
}

#[test]
fn writes_to_a_module_of_debian_sid_are_those_of_the_workload_in_each_load() {
    check_in_module("debian-sid");
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT).cpus(2);
    let boot = boot.expecting(EXPECTED);
    let ran = boot.probe(SYSCTL).probe(FORKS).probe(TICKS).run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    for name in [SYSCTL, FORKS, TICKS] {
        let all = writes(&ran, name);
        assert_chained(name, &all);
        let summed = probe(&summary, name);
        assert_eq!(summed.state, ProbeState::Armed, "{summed:?}");
        assert_eq!(summed.hits, all.len() as u64, "{summed:?}");
        assert!(summed.missed.is_empty(), "{summed:?}");
        for (hit, write) in &all {
            assert!(hit.symbol.contains('+'), "{hit:?}");
            assert!(write.bytes == 4 || write.bytes == 8, "{write:?}");
        }
    }

    // The command line sets the variable, too, before.
    let writer = number(&ran, "writer");
    let sysctl = writes(&ran, SYSCTL);
    let by_script = sysctl.iter().filter(|(hit, _)| {
        let task = hit.task.as_ref();
        task.is_some_and(|task| i64::from(task.pid) == writer)
    });
    let values: Vec<u64> = by_script.map(|(_, write)| write.new.0).collect();
    assert_eq!(values, (1..=WRITES).collect::<Vec<_>>());

    let forks = writes(&ran, FORKS);
    let numbers: Vec<u64> = forks.iter().map(|(_, write)| write.new.0).collect();
    let told = u64::try_from(number(&ran, "forks")).expect("a number");
    assert!(
        told > 16 && numbers.len() as u64 >= told,
        "{told} {numbers:?}"
    );
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let vcpus: BTreeSet<usize> = forks.iter().map(|(hit, _)| hit.vcpu).collect();
    assert!(vcpus.len() == 2, "{vcpus:?}");

    let ticks = writes(&ran, TICKS);
    assert!(ticks.len() > 10, "{}", ticks.len());
    for (_, write) in &ticks {
        assert!(write.new.0 > write.old.0, "{write:?}");
    }
}

#[test]
fn writes_to_variables_of_debian_6_1_are_those_of_the_workload() {
    check("debian-6.1");
}
