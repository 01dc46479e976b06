//! The level `registers`: the user's probes are in debug registers, and the guest reads its own text.

use std::collections::BTreeMap;
use std::thread;

use events::ProbeState;
use manifest::Stealth;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Guest, Ran, new};
use super::text::{own_sum, sums};

pub(super) const CASES: [Case; 6] = [
    Case::new("registers", Plants::Chosen, &[1], each_kind),
    Case::new("registers-smp", Plants::Chosen, &[2], |here| {
        for four in [
            ["fn_out", "fn_rdtsc", "fn_rep", "fn_lock"],
            ["fn_mov_store", "fn_cpuid", "fn_callee", "fn_ret"],
        ] {
            let ran = guest(here, "run=checksum,smp=30,checksum", four).run();
            assert_exact(here, &ran);
            assert!(ran.summary.probes.iter().all(|probe| probe.hits > 0));
        }
    }),
    Case::new("registers-fault", Plants::Chosen, &[1], |here| {
        // The guest executes the faulting instruction again with RF set, which no debug register reports.
        let ran = guest(here, "run=fault=7,checksum", ["fn_fault"]).run();
        assert_exact(here, &ran);
        assert_eq!(ran.hits("fn_fault"), 7);
    }),
    Case::new("registers-ring3", Plants::Chosen, &[1], |here| {
        // The debug register fires in front of the fault of the program's fetch.
        let scenarios = "run=userjump=5,calls=3,userjump=2,checksum";
        let ran = guest(here, scenarios, ["fn_push", "fn_pop"]).run();
        assert_exact(here, &ran);
        assert_eq!(ran.hits("fn_push"), 3);
    }),
    Case::new("registers-refused", Plants::Chosen, &[1], refused),
    Case::new("registers-live", Plants::Chosen, &[2], live),
];

fn guest<'a, const N: usize>(here: &'a Here<'a>, cmdline: &str, functions: [&str; N]) -> Guest<'a> {
    here.guest(cmdline)
        .at_level(Stealth::Registers)
        .probes(functions.map(|function| format!("kprobe:{function}")))
}

/// The guest found no failure, read the text of its file, and counted as many executions as were hit and reported.
fn assert_exact(here: &Here<'_>, ran: &Ran) {
    ran.assert_good();
    let sums = sums(ran);
    assert!(!sums.is_empty());
    for sum in sums {
        assert_eq!(sum, own_sum(here));
    }
    let mut reported: BTreeMap<String, u64> = BTreeMap::new();
    for hit in ran.observer.hits() {
        *reported.entry(hit.probe.to_string()).or_default() += 1;
    }
    for probe in &ran.summary.probes {
        let function = probe.probe.trim_start_matches("kprobe:");
        let reported = reported.get(&probe.probe).copied().unwrap_or(0);
        let counted = ran.counted(function);
        assert_eq!((probe.hits, reported), (counted, counted), "{probe:?}");
    }
}

/// Four instructions at a time: emulated ones, and ones for the hardware.
fn each_kind(here: &Here<'_>) {
    let calls = "run=checksum,calls=10,checksum";
    let rewritten = "run=selfpatch=1,int3=3,recurse=9,calls=2,checksum";
    for (cmdline, four) in [
        (calls, ["fn_nop", "fn_push", "fn_mov_load", "fn_mov_store"]),
        (calls, ["fn_rdtsc", "fn_cpuid", "fn_cr3", "fn_out"]),
        (calls, ["fn_rep", "fn_pushf", "fn_lock", "fn_xchg"]),
        (calls, ["fn_call", "fn_call_mem", "fn_callee", "fn_tail"]),
        (calls, ["fn_jcc", "fn_jmp", "fn_ret", "fn_loop"]),
        (rewritten, ["fn_patched", "fn_int3", "fn_recurse", "fn_pop"]),
    ] {
        let ran = guest(here, cmdline, four).run();
        assert_exact(here, &ran);
        for probe in &ran.summary.probes {
            assert!(probe.hits > 0, "{probe:?}");
        }
    }
}

/// Two probes share the register of their instruction, the fifth instruction has none, and no return is followed.
fn refused(here: &Here<'_>) {
    let probes = [
        "kprobe:fn_nop",
        "kprobe:fn_mov",
        "kprobe:fn_sub",
        "kretprobe:fn_add",
        "kprobe:fn_push",
        "kprobe:fn_lea",
        "kprobe:fn_nop",
    ];
    let ran = guest(here, "run=calls=4,checksum", []).probes(probes).run();
    assert!(ran.outcome.is_good(), "{:?}", ran.outcome);
    let refused: Vec<_> = ran
        .summary
        .probes
        .iter()
        .map(|probe| probe.state == ProbeState::Refused)
        .collect();
    assert_eq!(refused, [false, false, false, true, false, true, false]);
    for (number, probe) in ran.summary.probes.iter().enumerate() {
        let hits = if refused[number] { 0 } else { 4 };
        assert_eq!(probe.hits, hits, "{probe:?}");
    }
    let notes = ran.observer.notes();
    let says = |text: &str| notes.iter().any(|note| note.text.contains(text));
    assert!(
        says("four debug registers") && says("to which calls return"),
        "{notes:?}"
    );
}

/// Probes come and go: a removed probe frees its register, and a disabled probe keeps it.
fn live(here: &Here<'_>) {
    const ROUNDS: usize = 20;
    let functions = ["fn_nop", "fn_rdtsc", "fn_rep"];
    let guest = guest(here, "run=smp=400,checksum", functions).prepare();
    let (control, engine) = (guest.session.control(), guest.session.engine().clone());
    let observer = guest.observer.clone();
    let ran = thread::scope(|scope| {
        let working = scope.spawn(|| {
            for round in 0..ROUNDS {
                observer.wait_for_hits(observer.hits().len() + 3);
                let ids = engine.inventory().ids();
                let paused = control.pause_all();
                let added = engine
                    .register(&paused, &[new("kprobe:fn_out")])
                    .expect("registered");
                let known = engine.set_enabled(&paused, ids[1], round % 2 == 1);
                assert!(known.expect("it is changed"));
                let fifth = engine
                    .register(&paused, &[new("kprobe:fn_lock")])
                    .expect("registered");
                let summaries = engine.inventory().summaries();
                assert_eq!(summaries[4].state, ProbeState::Refused);
                assert_eq!(engine.unregister(&paused, &fifth).expect("removed"), 1);
                drop(paused);
                observer.wait_for_hits(observer.hits().len() + 3);
                let paused = control.pause_all();
                for probe in engine.inventory().summaries() {
                    assert_ne!(probe.state, ProbeState::Refused, "{probe:?}");
                }
                assert_eq!(engine.unregister(&paused, &added).expect("removed"), 1);
            }
        });
        let ran = guest.run();
        working.join().expect("worked");
        ran
    });
    assert!(ran.outcome.is_good(), "{:?}", ran.outcome);
    ran.assert_accounted();
    assert_eq!(sums(&ran), [own_sum(here)]);
    for function in ["fn_nop", "fn_rep"] {
        assert_eq!(ran.hits(function), ran.counted(function), "{function}");
    }
    assert!((1..ran.counted("fn_rdtsc")).contains(&ran.hits("fn_rdtsc")));
}
