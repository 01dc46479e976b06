//! Watched per-CPU variables of stock kernels: the writes to all copies, against the sum that the kernel tells.

use std::collections::BTreeMap;

use crate::boot::{Boot, Ran, Stock, probe};
use crate::tracepoints::number;
use crate::watch::writes;

/// The kernel adds the copies of all processors to the number of inodes.
const INODES: &str = "watch:nr_inodes:8";
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

/// The sums of the copies from one mark to the other, in the order of the writes.
fn sums_between_marks(ran: &Ran) -> Vec<i64> {
    let mut copies: BTreeMap<u16, i64> = BTreeMap::new();
    for (hit, write) in writes(ran, INODES) {
        let cpu = write.copy.expect("a processor");
        let value = write.new.0.cast_signed();
        // Each write changes the copy of its own processor.
        let before = copies.insert(cpu, value);
        let old = write.old.0.cast_signed();
        assert!(before.is_none_or(|before| before == old), "{hit:?}");
        assert_eq!((value - old).abs(), 1, "{hit:?}");
        assert_eq!(usize::from(cpu), hit.vcpu, "{hit:?}");
    }
    // The first value of each copy is that in front of its first write.
    let mut now: BTreeMap<u16, i64> = BTreeMap::new();
    for (_, write) in writes(ran, INODES) {
        let cpu = write.copy.expect("a processor");
        now.entry(cpu).or_insert(write.old.0.cast_signed());
    }
    assert_eq!(now.len(), 2, "{now:?}");
    let (mut sums, mut is_between) = (Vec::new(), false);
    for hit in ran.hits() {
        let write = hit.write.expect("a write");
        if &*hit.probe == MARK {
            is_between = write.new.0 == IN_FRONT;
            if write.new.0 == BEHIND {
                return sums;
            }
        } else {
            now.insert(write.copy.expect("a processor"), write.new.0.cast_signed());
        }
        if is_between {
            sums.push(now.values().sum());
        }
    }
    panic!("no second mark");
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT).cpus(2);
    let ran = boot.probe(INODES).probe(MARK).run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let summary = ran.summary();
    let summed = probe(&summary, INODES);
    assert!(summed.missed.is_empty(), "{summed:?}");
    println!("{image}: {} exits for {} hits", summed.exits, summed.hits);
    let told = number(&ran, "inodes");
    let sums = sums_between_marks(&ran);
    assert!(sums.contains(&told), "{told} is none of {sums:?}");
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
