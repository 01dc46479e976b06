//! A short `make bench`: every measurement works, and the results that do not depend on time are right.

use std::collections::BTreeMap;
use std::time::Duration;

use hyprobe_rigs::line::{Backend, Line};
use hyprobe_rigs::overhead::{Overhead, WAYS};

const CALLS: u64 = 20;
const ROUNDS: usize = 2;
/// Exits of ten hits.
const EXITS: [(&str, u64); 6] = [
    ("counted", 10),
    ("told", 10),
    ("handled", 10),
    ("copied", 10),
    ("returns", 20),
    ("in-place", 20),
];
/// The maximum number of hits before the first recorded hit; each exits.
const FIRST_HITS: u64 = 10;

#[test]
fn every_way_is_measured() {
    let dir = tempfile::tempdir().expect("tempdir");
    let guest = guest_images::build_testguest(dir.path()).expect("it compiles");
    let overhead = Overhead {
        backend: Backend::Local,
        guest: &guest,
        stock: None,
        only: "",
        calls: CALLS,
        rounds: ROUNDS,
        timeout: Duration::from_secs(100),
    };
    let mut output = Vec::new();
    let failed = overhead.run(&mut output).expect("it comes to its end");
    let output = String::from_utf8(output).expect("text");
    assert_eq!(failed, 0, "{output}");
    let timings = output.lines().filter_map(|line| match Line::find(line) {
        Some(Line::Timing(timing)) => Some(((timing.way.clone(), timing.cpus), timing)),
        _ => None,
    });
    let timings: BTreeMap<_, _> = timings.collect();
    let rates = [("rate", 1), ("rate", 2), ("records", 1), ("records", 2)];
    for (way, cpus) in WAYS.iter().map(|way| (way.key, 1)).chain(rates) {
        let timing = timings.get(&(way.to_owned(), cpus)).expect(way);
        assert_eq!(timing.rounds_ns.len(), ROUNDS, "{timing:?}");
        assert!(timing.rounds_ns.iter().all(|time| *time > 0), "{timing:?}");
    }
    for (way, expected) in EXITS {
        let timing = &timings[&(way.to_owned(), 1)];
        assert_eq!(timing.exits * 10, timing.hits * expected, "{timing:?}");
        assert!(timing.hits >= CALLS * ROUNDS as u64, "{timing:?}");
    }
    for way in WAYS.iter().filter(|way| way.jumps) {
        let timing = &timings[&(way.key.to_owned(), 1)];
        // A return exits.
        let returns = if way.key == "returns-recorded" {
            timing.hits
        } else {
            0
        };
        assert!(timing.exits <= returns + FIRST_HITS, "{timing:?}");
    }
    assert_eq!(timings[&("filtered".to_owned(), 1)].hits, 0);
}
