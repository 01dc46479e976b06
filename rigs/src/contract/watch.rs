//! Watchpoints: each write of the test guest to a watched word, with the values before and after.

use std::thread;

use events::{DataWrite, Hit, ProbeState};
use manifest::{Action, ProbeConfig};
use probes::EngineAction;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Ran, new};

pub(super) const CASES: [Case; 8] = [
    Case::new("watch", Plants::Chosen, &[1], sequence),
    Case::new("watch-probed", Plants::Each, &[1], |here| {
        stores_with_a_probe(here, WORD);
    }),
    Case::new("watch-smp", Plants::Chosen, &[2], locked),
    Case::new("watch-vector", Plants::Chosen, &[1], vector),
    Case::new("watch-live", Plants::Chosen, &[1], live),
    Case::new("watch-many", Plants::Chosen, &[1], many),
    Case::new("watch-many-removed", Plants::Chosen, &[1], many_removed),
    Case::new("watch-range", Plants::Chosen, &[1], range),
];

pub(super) const WORD: &str = "watch:watch_word:8";
const PARTS_AT_ONCE: &str = "watch:watch_word:4000";
const LAST_BYTE: &str = "watch:watch_word+0x7:1";
/// The number of parts of the page with watchpoints of their own, and their length.
const PARTS: usize = 1000;
const PART_BYTES: usize = 4;
const STORE: &str = "kprobe:watch_store";
/// The function with one instruction of each kind.
pub(super) const WRITES: &str = "watch_writes+";

/// The value of the word after each instruction of `watch_writes` that writes to it, up to the repeated one. The word begins with 0.
pub(super) const VALUES: [u64; 14] = [
    0x1122_3344_5566_7788, // mov, 8 bytes
    0x1122_3344_0000_0000, // mov, 4 bytes
    0xab22_3344_0000_0000, // mov to byte 7
    0xab22_3344_0000_0001, // inc
    0xab22_3344_0000_0011, // lock xadd
    5,                     // xchg
    6,                     // lock cmpxchg
    6,                     // lock cmpxchg that finds another value, and stores it back
    6,                     // mov of the same value
    0xdead,                // the upper half of a mov to byte -2
    0x7777,                // movs
    0x1234,                // pop
    0x100_0000_1234,       // lock bts
    0x200_0000_2468,       // shl
];
/// The value after `rep stosb`. A KVM that emulates the guest stores, and reports, each byte.
const REPEATED: u64 = 0x200_4141_4141;
/// The instructions that write to byte 7, by their position in `VALUES`.
const TO_LAST_BYTE: [usize; 11] = [0, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13];

pub(super) fn writes(ran: &Ran, probe: &str) -> Vec<(Hit, DataWrite)> {
    let hits = ran.observer.hits().into_iter();
    let of_probe = hits.filter(|hit| &*hit.probe == probe);
    of_probe
        .filter_map(|hit| hit.write.map(|write| (hit, write)))
        .collect()
}

/// Asserts that each write has found the value that the write before has left.
pub(super) fn assert_chained(writes: &[(Hit, DataWrite)]) {
    for (before, after) in writes.iter().zip(&writes[1..]) {
        assert_eq!(before.1.new, after.1.old, "{before:?} {after:?}");
    }
}

fn sequence(here: &Here<'_>) {
    let ran = here.guest("run=watch=0").probes([WORD, LAST_BYTE]).run();
    ran.assert_good();
    let all = writes(&ran, WORD);
    let (each, repeated) = all.split_at(VALUES.len());
    let new: Vec<u64> = each.iter().map(|(_, write)| write.new.0).collect();
    assert_eq!(new, VALUES);
    assert_eq!(each[0].1.old.0, 0);
    assert_chained(&all);
    assert!(matches!(repeated.len(), 1 | 4), "{repeated:?}");
    assert_eq!(
        repeated.last().map(|(_, write)| write.new.0),
        Some(REPEATED)
    );
    for (hit, write) in &all {
        assert!(hit.symbol.starts_with(WRITES), "{hit:?}");
        assert_eq!(write.bytes, 8);
        assert_eq!(write.at, all[0].1.at);
    }
    // The instructions are distinct, and in their order.
    let ips: Vec<u64> = each.iter().map(|(hit, _)| hit.ip.0).collect();
    assert!(ips.is_sorted_by(|one, next| one < next), "{ips:x?}");
    let probe = ran.probe(WORD);
    assert_eq!(probe.hits, all.len() as u64);
    // The neighbours cost exits, too.
    assert!(probe.exits >= probe.hits + 2, "{probe:?}");
    let last_byte: Vec<(u64, u64)> = writes(&ran, LAST_BYTE)
        .iter()
        .map(|(_, write)| (write.old.0, write.new.0))
        .collect();
    let byte = |value: u64| value >> 56;
    let expected: Vec<(u64, u64)> = TO_LAST_BYTE
        .into_iter()
        .map(|at| {
            let old = at.checked_sub(1).map_or(0, |before| VALUES[before]);
            (byte(old), byte(VALUES[at]))
        })
        .collect();
    // `lock bts` and `shl` write all bytes; `bts` may write its doubleword alone.
    assert_eq!(without_bts(&last_byte), without_bts(&expected));
}

/// The writes of byte 7 without those that change 0 to 0: the processor decides how much of the word `bts` writes.
fn without_bts(writes: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let changes = writes.iter().filter(|(old, new)| (old, new) != (&0, &0));
    changes.copied().collect()
}

/// The store itself has a probe: a plant whose instruction the emulator executes, and a jump to a detour with a copy.
pub(super) fn stores_with_a_probe(here: &Here<'_>, watched: &str) {
    const STORES: u64 = 20;
    let counted = ProbeConfig {
        action: EngineAction::from(Action::Count),
        ..new(STORE)
    };
    for store in [new(STORE), counted] {
        let guest = here.guest(&format!("run=watch={STORES}"));
        let ran = guest.with([store, new(watched)]).run();
        ran.assert_good();
        assert_eq!(ran.probe(STORE).hits, STORES);
        let all = writes(&ran, watched);
        assert_chained(&all);
        let by_store: Vec<u64> = all
            .iter()
            .filter(|(hit, _)| &*hit.symbol == "watch_store+0x0")
            .map(|(_, write)| write.new.0)
            .collect();
        assert_eq!(by_store, (1..=STORES).collect::<Vec<_>>());
    }
}

/// Two vCPUs, locked instructions only: the guest checks that no update is lost.
fn locked(here: &Here<'_>) {
    const ROUNDS: u64 = 200;
    let ran = here
        .guest(&format!("run=watchsmp={ROUNDS}"))
        .probes([WORD])
        .run();
    ran.assert_good();
    let all = writes(&ran, WORD);
    assert_chained(&all);
    // A `cmpxchg` that finds another value stores the value back.
    let mut changes = all;
    changes.retain(|(_, write)| write.old != write.new);
    let new: Vec<u64> = changes.iter().map(|(_, write)| write.new.0).collect();
    assert_eq!(new, (1..=6 * ROUNDS).collect::<Vec<_>>());
    for vcpu in 0..2 {
        let of_vcpu = changes.iter().filter(|(hit, _)| hit.vcpu == vcpu).count();
        assert_eq!(of_vcpu as u64, 3 * ROUNDS, "of vCPU {vcpu}");
    }
}

/// The hardware executes the stores, alone.
fn vector(here: &Here<'_>) {
    const STORES: u64 = 50;
    let ran = here
        .guest(&format!("run=watchvector={STORES}"))
        .probes([WORD])
        .run();
    ran.assert_good();
    let all = writes(&ran, WORD);
    assert_chained(&all);
    let new: Vec<u64> = all.iter().map(|(_, write)| write.new.0).collect();
    assert_eq!(new, (1..=STORES).collect::<Vec<_>>());
    for (hit, _) in &all {
        assert_eq!(hit.ip, all[0].0.ip);
        assert!(hit.symbol.starts_with("scenario_watchvector+"), "{hit:?}");
    }
}

/// A watchpoint comes and goes while the guest runs.
fn live(here: &Here<'_>) {
    const STORES: u64 = 30_000;
    let guest = here
        .guest(&format!("run=watch={STORES}"))
        .probes([STORE])
        .without_jumps()
        .prepare();
    let (control, engine) = (guest.session.control(), guest.session.engine().clone());
    let observer = guest.observer.clone();
    let watch: ProbeConfig<EngineAction> = new(WORD);
    let ran = thread::scope(|scope| {
        let working = scope.spawn(|| {
            let mut at_end = Vec::new();
            for round in 1..=3 {
                observer.wait_for_hits(round * 40);
                let ids = engine
                    .register(&control.pause_all(), std::slice::from_ref(&watch))
                    .expect("registered");
                observer.wait_for_hits(observer.hits().len() + 20);
                let paused = control.pause_all();
                for id in &ids {
                    at_end.extend(engine.inventory().statuses_of(*id));
                }
                assert_eq!(engine.unregister(&paused, &ids).expect("removed"), 1);
            }
            at_end
        });
        let ran = guest.run();
        let at_end = working.join().expect("worked");
        let counted: u64 = at_end.iter().map(|status| status.summary.hits).sum();
        for status in &at_end {
            assert_eq!(status.summary.state, ProbeState::Armed, "{status:?}");
        }
        assert_eq!(writes(&ran, WORD).len() as u64, counted);
        ran
    });
    ran.assert_good();
    assert_eq!(ran.probe(STORE).hits, STORES);
    let all = writes(&ran, WORD);
    assert!(
        !all.is_empty() && (all.len() as u64) < STORES,
        "{}",
        all.len()
    );
    for (_, write) in &all {
        assert_eq!(write.new.0, write.old.0 + 1, "{write:?}");
    }
}

fn parts() -> Vec<ProbeConfig<EngineAction>> {
    let offsets = (0..PARTS).map(|part| part * PART_BYTES);
    let specs = offsets.map(|offset| format!("watch:watch_word+{offset:#x}:{PART_BYTES}"));
    specs.map(|spec| new(&spec)).collect()
}

/// A thousand watchpoints on a page, registered at once: each counts the stores to its own bytes.
fn many(here: &Here<'_>) {
    const ROUNDS: u64 = 2;
    let guest = here.guest(&format!("run=watchmany={ROUNDS}")).prepare();
    let ids = guest.register(&parts());
    assert_eq!(ids.len(), PARTS);
    let ran = guest.run();
    ran.assert_good();
    for (part, watched) in (0..).zip(parts()) {
        let probe = ran.probe(&watched.at.to_string());
        assert_eq!(probe.hits, ROUNDS * (part % 4), "{probe:?}");
        assert!(probe.missed.is_empty(), "{probe:?}");
    }
}

/// A thousand watchpoints are removed at once while the guest writes: no later write is reported.
fn many_removed(here: &Here<'_>) {
    const ROUNDS: u64 = 40;
    const BEFORE: usize = 2000;
    let guest = here.guest(&format!("run=watchmany={ROUNDS}")).prepare();
    let (control, engine) = (guest.session.control(), guest.session.engine().clone());
    let observer = guest.observer.clone();
    let ids = guest.register(&parts());
    let ran = thread::scope(|scope| {
        let working = scope.spawn(|| {
            observer.wait_for_hits(BEFORE);
            let paused = control.pause_all();
            let statuses = ids
                .iter()
                .flat_map(|id| engine.inventory().statuses_of(*id));
            let counted: u64 = statuses.map(|status| status.summary.hits).sum();
            let removed = engine.unregister(&paused, &ids).expect("removed");
            assert_eq!(removed, PARTS);
            counted
        });
        let ran = guest.run();
        let counted = working.join().expect("worked");
        assert_eq!(ran.observer.hits().len() as u64, counted);
        let stores = ROUNDS * (0..PARTS as u64).map(|part| part % 4).sum::<u64>();
        assert!(counted < stores, "{counted} of {stores}");
        ran
    });
    ran.assert_good();
}

/// A watchpoint of many words: a hit for each store, with the word's offset.
fn range(here: &Here<'_>) {
    const ROUNDS: u64 = 2;
    let guest = here.guest(&format!("run=watchmany={ROUNDS}"));
    let ran = guest.probes([PARTS_AT_ONCE]).run();
    ran.assert_good();
    let all = writes(&ran, PARTS_AT_ONCE);
    let stores = ROUNDS * (0..PARTS as u64).map(|part| part % 4).sum::<u64>();
    assert_eq!(all.len() as u64, stores);
    let first = all[0].1.at.0 - u64::from(all[0].1.offset);
    for (hit, write) in &all {
        assert_eq!(write.at.0, first + u64::from(write.offset), "{hit:?}");
        // One of the two parts of the word has grown by one.
        let grown = write.new.0 - write.old.0;
        assert!(matches!(grown, 1 | 0x1_0000_0000), "{hit:?}");
    }
    let probe = ran.probe(PARTS_AT_ONCE);
    assert_eq!((probe.hits, probe.exits), (stores, stores), "{probe:?}");
}
