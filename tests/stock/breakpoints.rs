//! The guest's own hardware watchpoint and a watchpoint of hyprobe at the same variable: each write is counted by one of them.

use std::collections::BTreeMap;

use control::Client;
use control::api::{AddProbe, AddProbes};
use events::{Hit, ProbeState};
use guest_images::workload;
use manifest::GuestEnd;

use crate::boot::{Boot, Ran, Running, Stock};

/// The variable of `/proc/sys/kernel/panic`.
const WATCHED: &str = "watch:panic_timeout";
const SOCKET: &str = "x.sock";
/// Writes of a round of the guest, as in the script.
const WRITES: u64 = 20;
/// Whole rounds before the watchpoint comes, while it is there, and after it has gone.
const ROUNDS: u64 = 3;
const SCRIPT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc
$b mount -t proc proc /proc
at=$($b sed -n 's/ . panic_timeout$//p' /proc/kallsyms)
round=1
while :; do
    /bin/breakpoint $at $round 20 || echo "wrong: $?"
    $b usleep 50000
    round=$((round + 1))
done
"#;

/// The rounds and the writes that the guest's own watchpoint has counted in each.
fn own_counts(console: &str) -> BTreeMap<u64, u64> {
    let whole = console
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let counts = whole.filter_map(|line| line.trim().strip_prefix("own ")?.split_once(' '));
    let parsed = counts.map(|(round, count)| {
        let count = count
            .parse()
            .unwrap_or_else(|_| panic!("own {round} {count}"));
        (round.parse().expect("a round"), count)
    });
    parsed.collect()
}

/// The values that hyprobe has seen, by the guest's round.
fn values_by_round(ran: &Ran) -> BTreeMap<u64, Vec<u64>> {
    let mut rounds: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for Hit { write, .. } in ran.hits() {
        let value = write.expect("a write").new.0;
        rounds.entry(value / WRITES).or_default().push(value);
    }
    rounds
}

/// Waits until the guest has finished `rounds` more rounds.
fn wait_for_rounds(running: &mut Running, rounds: u64) {
    let counts = own_counts(&running.console());
    let last = counts.keys().next_back().copied().unwrap_or(0);
    running.wait_for_console(&format!("own {} ", last + rounds + 1));
}

fn check(image: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = workload::build_breakpoint(folder.path()).expect("it compiles");
    let stock = Stock::fetch(image);
    let boot = Boot::with_script(&stock, SCRIPT).host_file_at("/bin/breakpoint", &program);
    let mut running = boot.cpus(2).option("--control", SOCKET).start();
    running.wait_for_console(&format!("own {} ", ROUNDS + 1));
    let client = Client::new(&running.folder().join(SOCKET)).expect("a client");
    let added = AddProbes::One(AddProbe::new(WATCHED));
    client.add(&added).expect("added");
    wait_for_rounds(&mut running, ROUNDS);
    let removed = client.remove_all().expect("removed").probes;
    wait_for_rounds(&mut running, ROUNDS);
    client.command("stop").expect("stopped");
    let ran = running.finish();
    assert_eq!(
        ran.summary().guest.end,
        GuestEnd::Stopped,
        "{}",
        ran.report()
    );
    ran.assert_well();
    assert!(!ran.console.contains("wrong"), "{}", ran.report());

    let own = own_counts(&ran.console);
    let ours = values_by_round(&ran);
    let [watched] = &removed[..] else {
        panic!("{removed:?}");
    };
    assert_eq!(watched.summary.state, ProbeState::Armed, "{watched:?}");
    assert!(watched.summary.missed.is_empty(), "{watched:?}");
    let hits: usize = ours.values().map(Vec::len).sum();
    assert_eq!(watched.summary.hits, hits as u64, "{watched:?}");

    // The processor's own watchpoints do not fire at emulated writes: a round during which the watchpoint comes or goes has writes of both kinds.
    for (round, count) in &own {
        let values = ours.get(round).map_or(&[][..], Vec::as_slice);
        assert_eq!(count + values.len() as u64, WRITES, "{round}: {ours:?}");
        assert!(values.is_sorted_by(|a, b| a + 1 == *b), "{values:?}");
    }
    let alone = |by: &str, wanted: u64| {
        let rounds = own.values().filter(|count| **count == wanted).count();
        assert!(rounds as u64 >= ROUNDS, "alone, {by}: {own:?}");
    };
    alone("the guest's own", WRITES);
    alone("ours", 0);
    // The guest's own watchpoint works again behind ours.
    let last = own.values().next_back();
    assert_eq!(last, Some(&WRITES), "{own:?}");
}

#[test]
fn writes_are_counted_as_by_the_own_watchpoint_of_debian_6_1() {
    check("debian-6.1");
}

#[test]
fn writes_are_counted_as_by_the_own_watchpoint_of_debian_sid() {
    check("debian-sid");
}
