//! Probes in programs of stock kernels: the hits are the calls that the programs count themselves, and readers of the file notice nothing.

use std::collections::BTreeSet;

use events::ProbeState;
use manifest::GuestEnd;

use crate::boot::{Boot, Ran, Stock, probe};
use crate::schema::assert_lines_match;

const COUNTED: &str = "uprobe:/init:counted";
/// An instruction that only the hardware executes.
const WITH_BYTES: &str = "uprobe:/init:with_bytes";
/// The last instruction of the function, and its second.
const RETURN: &str = "uprobe:/init:counted_return";
const SECOND: &str = "uprobe:/init:counted+0x1";
/// No instruction begins there.
const WITHIN: &str = "uprobe:/init:counted+0x2";
const IN_COPY: &str = "uprobe:/copy:counted";
/// No program maps the file.
const ABSENT: &str = "uprobe:/absent:counted";

/// The numbers in the last line of the console that begins with `name`.
fn numbers(ran: &Ran, name: &str) -> Vec<u64> {
    let mut lines = ran.console.lines().rev();
    let line = lines.find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' '));
    let line = line.unwrap_or_else(|| panic!("no `{name}`: {}", ran.console));
    line.split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect()
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let boot = Boot::with_uprobes(&stock)
        .cpus(2)
        .counted(RETURN)
        .counted(SECOND);
    let boot = boot
        .probe(COUNTED)
        .probe(WITH_BYTES)
        .probe(IN_COPY)
        .probe(ABSENT)
        .probe(WITHIN);
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{image}: {}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    assert_lines_match(&ran.events);

    let sums: BTreeSet<u64> = numbers(&ran, "sums").into_iter().collect();
    assert_eq!(sums.len(), 1, "{image}: {sums:?}");
    let [calls, with_bytes, in_copy] = numbers(&ran, "counted")[..] else {
        panic!("{}", ran.console);
    };
    assert!(
        calls >= 800 && with_bytes >= 8 && in_copy >= 300,
        "{calls} {with_bytes} {in_copy}"
    );
    for (name, expected) in [
        (COUNTED, calls),
        (RETURN, calls),
        (SECOND, calls),
        (WITH_BYTES, with_bytes),
        (IN_COPY, in_copy),
    ] {
        let summed = probe(&summary, name);
        assert_eq!(summed.state, ProbeState::Armed, "{image}: {summed:?}");
        assert_eq!(summed.hits, expected, "{image}: {summed:?}");
        assert!(summed.missed.is_empty(), "{image}: {summed:?}");
    }
    for name in [ABSENT, WITHIN] {
        let summed = probe(&summary, name);
        assert_eq!(
            (summed.state, summed.hits),
            (ProbeState::Pending, 0),
            "{summed:?}"
        );
    }
    let is_note =
        |text: &str| text.contains("/init is not probed: offset 0x2 is inside the instruction");
    assert!(
        ran.notes().iter().any(|note| is_note(note)),
        "{:?}",
        ran.notes()
    );

    let hits = ran.hits();
    let of = |name: &str| hits.iter().filter(|hit| &*hit.probe == name).count() as u64;
    assert_eq!(
        (of(COUNTED), of(WITH_BYTES)),
        (calls, with_bytes),
        "{image}"
    );
    for hit in hits.iter().filter(|hit| &*hit.probe == COUNTED) {
        assert_eq!(&*hit.symbol, "counted+0x0 [/init]");
        assert!(hit.task.is_some(), "{hit:?}");
    }
    let tasks = hits.iter().filter_map(|hit| Some(hit.task.as_ref()?.pid));
    let tasks: BTreeSet<i32> = tasks.collect();
    assert!(tasks.len() >= 7, "{image}: {tasks:?}");
}

#[test]
fn uprobes_of_debian_5_10_hit_as_often_as_the_programs_count() {
    check("debian-5.10");
}

#[test]
fn uprobes_of_debian_6_1_hit_as_often_as_the_programs_count() {
    check("debian-6.1");
}

#[test]
fn uprobes_of_debian_6_12_hit_as_often_as_the_programs_count() {
    check("debian-6.12");
}

#[test]
fn uprobes_of_debian_sid_hit_as_often_as_the_programs_count() {
    check("debian-sid");
}
