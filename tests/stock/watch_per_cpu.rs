//! Watched per-CPU variables of stock kernels: the writes to all copies, against the sum that the kernel tells. By pages, by debug registers, and by
//! debug registers at the addresses of the copies.

use std::collections::BTreeMap;

use events::{DataWrite, Hex, Hit};

use crate::boot::{Boot, Ran, Stock, probe};
use crate::tracepoints::number;

/// The kernel adds the copies of all processors to the number of inodes.
const INODES: &str = "watch:nr_inodes:8";
const IN_REGISTERS: &str = "watch:nr_inodes:8:hw";
/// The script writes the sysctl before and after it reads the number.
const MARK: &str = "watch:panic_timeout";
const IN_FRONT: u64 = 77;
const BEHIND: u64 = 78;
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /tmp
$b mount -t proc proc /proc
for i in 1 2 3 4 5 6 7 8; do
    ($b touch /tmp/a$i; $b cat /proc/version >/dev/null) &
    ($b touch /tmp/b$i; $b cat /proc/version >/dev/null) &
    wait
done
$b rm /tmp/a*
echo 77 >/proc/sys/kernel/panic
set -- $($b cat /proc/sys/fs/inode-nr)
echo 78 >/proc/sys/kernel/panic
echo inodes $1
$b poweroff -f
"#;

/// The writes to the copies, each with the number of the copy, and those to the mark.
fn written(ran: &Ran, watchpoints: &[&str]) -> Vec<(Option<u16>, Hit, DataWrite)> {
    let hits = ran.hits().into_iter().map(|hit| {
        let write = hit.write.expect("a write");
        let watchpoint = watchpoints.iter().position(|spec| **spec == *hit.probe);
        let copy = watchpoint.map(|at| match write.copy {
            Some(copy) => copy,
            None => u16::try_from(at).expect("few"),
        });
        (copy, hit, write)
    });
    hits.collect()
}

/// The sums of the copies from one mark to the other, in the order of the writes.
fn sums_between_marks(writes: &[(Option<u16>, Hit, DataWrite)]) -> Vec<i64> {
    let mut copies: BTreeMap<u16, i64> = BTreeMap::new();
    // The first value of each copy is that in front of its first write.
    let mut now: BTreeMap<u16, i64> = BTreeMap::new();
    for (copy, hit, write) in writes {
        let Some(cpu) = *copy else { continue };
        let value = write.new.0.cast_signed();
        // Each write changes the copy of its own processor.
        let before = copies.insert(cpu, value);
        let old = write.old.0.cast_signed();
        assert!(before.is_none_or(|before| before == old), "{hit:?}");
        assert_eq!((value - old).abs(), 1, "{hit:?}");
        assert_eq!(usize::from(cpu), hit.vcpu, "{hit:?}");
        now.entry(cpu).or_insert(old);
    }
    assert_eq!(now.len(), 2, "{now:?}");
    let (mut sums, mut is_between) = (Vec::new(), false);
    for (copy, _, write) in writes {
        match copy {
            None => is_between = write.new.0 == IN_FRONT,
            Some(cpu) => {
                now.insert(*cpu, write.new.0.cast_signed());
            }
        }
        if copy.is_none() && write.new.0 == BEHIND {
            return sums;
        }
        if is_between {
            sums.push(now.values().sum());
        }
    }
    panic!("no second mark");
}

/// Returns the addresses of the copies.
fn check_watchpoints(stock: &Stock, watchpoints: &[&str]) -> Vec<Hex> {
    let mut boot = Boot::with_script(stock, SCRIPT).cpus(2).probe(MARK);
    for watchpoint in watchpoints {
        boot = boot.probe(watchpoint);
    }
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let summary = ran.summary();
    for watchpoint in watchpoints {
        let summed = probe(&summary, watchpoint);
        assert!(summed.missed.is_empty(), "{summed:?}");
        let (exits, hits) = (summed.exits, summed.hits);
        println!("{watchpoint}: {exits} exits for {hits} hits");
    }
    let told = number(&ran, "inodes");
    let writes = written(&ran, watchpoints);
    let sums = sums_between_marks(&writes);
    assert!(sums.contains(&told), "{told} is none of {sums:?}");
    let of_copies = writes
        .iter()
        .filter_map(|(copy, _, write)| Some(((*copy)?, write.at)));
    let addresses: BTreeMap<u16, Hex> = of_copies.collect();
    addresses.into_values().collect()
}

fn check(image: &str) {
    check_watchpoints(&Stock::fetch(image), &[INODES]);
}

fn check_in_registers(image: &str) {
    let stock = Stock::fetch(image);
    let addresses = check_watchpoints(&stock, &[IN_REGISTERS]);
    // The kernel makes the copies at the same addresses in each boot.
    let at = addresses.iter().map(|at| format!("watch:{at}:8:hw"));
    let at: Vec<String> = at.collect();
    let at: Vec<&str> = at.iter().map(String::as_str).collect();
    assert_eq!(check_watchpoints(&stock, &at), addresses);
}

#[test]
fn writes_to_a_per_cpu_variable_of_debian_5_10_have_the_sum_of_the_kernel() {
    check("debian-5.10");
}

#[test]
fn writes_to_a_per_cpu_variable_of_debian_6_1_have_the_sum_of_the_kernel() {
    check("debian-6.1");
}

#[test]
fn writes_to_a_per_cpu_variable_of_debian_6_12_have_the_sum_of_the_kernel() {
    check("debian-6.12");
}

#[test]
fn writes_to_a_per_cpu_variable_of_debian_sid_have_the_sum_of_the_kernel() {
    check("debian-sid");
}

#[test]
fn debug_registers_see_the_writes_to_a_per_cpu_variable_of_debian_5_10() {
    check_in_registers("debian-5.10");
}

#[test]
fn debug_registers_see_the_writes_to_a_per_cpu_variable_of_debian_6_1() {
    check_in_registers("debian-6.1");
}

#[test]
fn debug_registers_see_the_writes_to_a_per_cpu_variable_of_debian_6_12() {
    check_in_registers("debian-6.12");
}

#[test]
fn debug_registers_see_the_writes_to_a_per_cpu_variable_of_debian_sid() {
    check_in_registers("debian-sid");
}
