//! Watchpoints with a debug register: each write of the test guest to a watched word, and no page that is protected.

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::new;
use super::watch::{VALUES, WORD, WRITES, assert_chained, stores_with_a_probe, writes};

pub(super) const CASES: [Case; 4] = [
    Case::new("watch-hw", Plants::Chosen, &[1], |here| {
        if !is_refused(here) {
            sequence(here);
        }
    }),
    Case::new("watch-hw-probed", Plants::Each, &[1], |here| {
        if !is_refused(here) {
            stores_with_a_probe(here, IN_REGISTER);
        }
    }),
    Case::new("watch-hw-vector", Plants::Chosen, &[1], |here| {
        if !is_refused(here) {
            vector(here);
        }
    }),
    Case::new("watch-hw-smp", Plants::Chosen, &[2], |here| {
        if !is_refused(here) {
            of_two(here);
        }
    }),
];

const IN_REGISTER: &str = "watch:watch_word:8:hw";
const NEIGHBOUR: &str = "watch:watch_word+0x8:8:hw";

/// Whether debug registers for data do not work on this host, which the engine then says.
fn is_refused(here: &Here<'_>) -> bool {
    if here.bench.facts().debug_data {
        return false;
    }
    let guest = here.guest("").with([]).prepare();
    let paused = guest.session.control();
    let engine = guest.session.engine();
    let registered = engine.register(&paused.pause_all(), &[new(IN_REGISTER)]);
    let error = registered.expect_err("refused");
    assert!(error.to_string().contains("do not work on this host"));
    true
}

/// Each kind of store; a page of the same word is protected, or not.
fn sequence(here: &Here<'_>) {
    for beside in [&[][..], &[WORD]] {
        let probes = [IN_REGISTER, NEIGHBOUR].into_iter();
        let probes = probes.chain(beside.iter().copied());
        let ran = here.guest("run=watch=0").probes(probes).run();
        ran.assert_good();
        let all = writes(&ran, IN_REGISTER);
        assert!(all.len() > VALUES.len(), "{all:?}");
        let (each, repeated) = all.split_at(VALUES.len());
        let new: Vec<u64> = each.iter().map(|(_, write)| write.new.0).collect();
        assert_eq!(new, VALUES);
        // The processor may stop behind each element.
        assert!((1..=4).contains(&repeated.len()), "{repeated:?}");
        for (hit, write) in &all {
            assert!(hit.symbol.starts_with(WRITES), "{hit:?}");
            assert_eq!(write.bytes, 8);
        }
        let ips: Vec<u64> = each.iter().map(|(hit, _)| hit.ip.0).collect();
        assert!(ips.is_sorted_by(|one, next| one < next), "{ips:x?}");
        let of_rep = repeated.iter().map(|(hit, _)| hit.ip);
        assert!(
            of_rep.clone().all(|ip| ip == repeated[0].0.ip),
            "{repeated:?}"
        );
        let probe = ran.probe(IN_REGISTER);
        // The neighbours cost no exit.
        assert_eq!((probe.hits, probe.exits), (all.len() as u64, probe.hits));
        assert!(probe.missed.is_empty(), "{probe:?}");
        for spec in beside {
            let in_page = writes(&ran, spec);
            assert_eq!(in_page.len(), VALUES.len() + 1);
        }
        assert_eq!(writes(&ran, NEIGHBOUR).len(), 1);
    }
}

/// Stores that the emulator does not know, at full speed, and alone, under a plant.
fn vector(here: &Here<'_>) {
    const STORES: u64 = 50;
    let plain = here.guest(&format!("run=watchvector={STORES}"));
    let first = plain.probes([IN_REGISTER]).run();
    first.assert_good();
    let all = writes(&first, IN_REGISTER);
    assert_eq!(all.len() as u64, STORES);
    let probe = format!("kprobe:{}", all[0].0.symbol);
    let probed = here.guest(&format!("run=watchvector={STORES}"));
    let ran = probed.without_jumps().probes([&probe, IN_REGISTER]).run();
    ran.assert_good();
    assert_eq!(ran.probe(&probe).hits, STORES);
    let all = writes(&ran, IN_REGISTER);
    assert!(!all.is_empty(), "{:?}", ran.summary.probes);
    assert_chained(&all);
    let new: Vec<u64> = all.iter().map(|(_, write)| write.new.0).collect();
    assert_eq!(new, (1..=STORES).collect::<Vec<_>>());
}

/// Two vCPUs write at once: each write is a hit. The value is that of the moment of the exit.
fn of_two(here: &Here<'_>) {
    const ROUNDS: u64 = 200;
    let guest = here.guest(&format!("run=watchreadsmp={ROUNDS}"));
    let ran = guest.probes([IN_REGISTER]).run();
    ran.assert_good();
    let all = writes(&ran, IN_REGISTER);
    assert_eq!(all.len() as u64, 2 * ROUNDS);
    for vcpu in 0..2 {
        let of_vcpu = all.iter().filter(|(hit, _)| hit.vcpu == vcpu).count();
        assert_eq!(of_vcpu as u64, ROUNDS, "of vCPU {vcpu}");
    }
    assert_eq!(all.last().map(|(_, write)| write.new.0), Some(2 * ROUNDS));
}
