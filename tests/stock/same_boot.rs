//! A boot with probes leaves the same files and messages in a stock guest as one without: `docs/invisibility.md`.

use std::collections::BTreeMap;

use manifest::GuestEnd;

use crate::boot::{Boot, Ran, Stock};

const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /sys
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b insmod /dummy.ko
for f in kallsyms modules iomem ioports cmdline devices filesystems misc version; do
    echo "file $f $($b sha256sum </proc/$f)"
done
echo "file sysfs $($b find /sys | $b sort | $b sha256sum)"
$b sed 's/  */ /g; s/\([^:]*\):[ 0-9]*/interrupt \1 /' /proc/interrupts
$b dmesg | $b sed 's/^\[[^]]*\]/message/'
echo "no more"
$b poweroff -f
"#;

/// Probes of all kinds.
const COUNTED: [&str; 5] = [
    "kprobe:vfs_*",
    "kprobe:__x64_sys_*",
    "kretprobe:vfs_read",
    "kretprobe:schedule",
    "tracepoint:sched:sched_process_fork",
];
/// Messages with times, and with the memory that is free at a time: of these, the words are compared.
const MEASURED: [&str; 9] = [
    "message tsc: Detected",
    "message tsc: Refined TSC clocksource calibration",
    "message Calibrating delay loop",
    "message smpboot: Total of",
    "message audit: type=2000 audit(",
    "message kvm-clock: using sched offset",
    "message rtc_cmos",
    "message sched_clock: Marking stable",
    "message Memory:",
];

/// Messages about work that took long, on a busy host.
const LATE: [&str; 2] = ["interrupt took", "hogged CPU"];

/// The compared lines, and how often each line occurs.
fn printed(ran: &Ran) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for line in ran.console.lines().map(str::trim_end) {
        let is_compared = ["file ", "interrupt ", "message "]
            .iter()
            .any(|begin| line.starts_with(begin));
        if !is_compared || LATE.iter().any(|late| line.contains(late)) {
            continue;
        }
        let is_measured = MEASURED.iter().any(|measured| line.starts_with(measured));
        let shown = match is_measured {
            true => line
                .chars()
                .filter(|c| !c.is_ascii_digit() && *c != '-')
                .collect(),
            false => line.to_owned(),
        };
        *lines.entry(shown).or_default() += 1;
    }
    lines
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let boot = || {
        Boot::with_script(&stock, SCRIPT)
            .cpus(2)
            .modules(&["dummy"])
    };
    let probed = COUNTED
        .iter()
        .fold(boot(), |boot, probe| boot.counted(probe));
    let [bare, probed] = [boot(), probed].map(|boot| {
        let ran = boot.run();
        assert_eq!(ran.code, Some(0), "{}", ran.report());
        assert_eq!(ran.summary().guest.end, GuestEnd::Poweroff);
        assert!(ran.console.contains("no more"), "{}", ran.console);
        ran
    });
    let hits: u64 = probed.summary().probes.iter().map(|probe| probe.hits).sum();
    assert!(hits > 100, "{hits}");
    let [bare, probed] = [&bare, &probed].map(printed);
    let differing: Vec<_> = bare
        .iter()
        .filter(|(line, number)| probed.get(*line) != Some(number))
        .chain(
            probed
                .iter()
                .filter(|(line, number)| bare.get(*line) != Some(number)),
        )
        .collect();
    assert!(bare.len() > 100, "{bare:#?}");
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn probed_boot_of_debian_5_10_leaves_the_files_and_messages_of_another() {
    check("debian-5.10");
}

#[test]
fn probed_boot_of_debian_6_1_leaves_the_files_and_messages_of_another() {
    check("debian-6.1");
}

#[test]
fn probed_boot_of_debian_6_12_leaves_the_files_and_messages_of_another() {
    check("debian-6.12");
}

#[test]
fn probed_boot_of_debian_sid_leaves_the_files_and_messages_of_another() {
    check("debian-sid");
}
