//! Copies of instructions in the detour region: the guest executes the copies, and cannot change the region.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use events::Tier;
use manifest::ProbeConfig;
use probes::{Engine, EngineAction, Handler, HitContext, PreOutcome};
use vmm::Control;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Ran, new};

pub(super) const CASES: [Case; 4] = [
    Case::new("relocated", Plants::Bytes, &[1, 2], one_exit_a_hit),
    Case::new("vector", Plants::Each, &[1], |here| {
        let ran = here.guest("run=vector=20,calls=2").run();
        ran.assert_good();
        assert_eq!(ran.hits("fn_pxor"), 20);
    }),
    Case::new("detour-writes", Plants::Chosen, &[1], writes_are_dropped),
    Case::new("detour-live", Plants::Chosen, &[2], comes_and_goes),
];

/// Functions with an instruction that the processor has to execute, and that does not fault.
const COPIED: [&str; 3] = ["fn_rdtsc", "fn_cpuid", "fn_cr3"];

/// The time for which the guest runs undisturbed between two changes of the knob.
const TURN: Duration = Duration::from_millis(5);

fn probes() -> [String; 3] {
    COPIED.map(|function| format!("kprobe:{function}"))
}

fn one_exit_a_hit(here: &Here<'_>) {
    let run = if here.cpus == 1 { "calls=10" } else { "smp=10" };
    let ran = here
        .guest(&format!("run={run},checksum,{run},checksum"))
        .probes(probes())
        .run();
    ran.assert_good();
    for probe in probes() {
        let probe = ran.probe(&probe);
        assert_eq!(probe.tier, Some(Tier::Relocated), "{probe:?}");
        assert!(probe.hits >= 20);
        assert_eq!(probe.exits, probe.hits);
    }
    ran.assert_counts(&[]);
}

/// The number of detour regions in the guest's page tables, for each look by the guest.
fn found(ran: &Ran) -> Vec<&str> {
    let passed = ran.outcome.passed.iter();
    passed
        .filter(|(name, _)| name == "detour")
        .map(|(_, fields)| &*fields["found"])
        .collect()
}

/// The guest sees the region only if there is a copy. The guest's writes to the region are dropped.
fn writes_are_dropped(here: &Here<'_>) {
    let ran = here
        .guest("run=detour,calls=5,detour=0,calls=5")
        .probes(["kprobe:fn_push"])
        .run();
    ran.assert_good();
    assert_eq!(found(&ran), ["0", "0"], "nobody needs a region");

    let ran = here
        .guest("run=detour=0,calls=5,detour=10,calls=5")
        .probes(probes())
        .run();
    assert!(ran.outcome.is_good(), "{}", ran.observer.console());
    assert_eq!(found(&ran), ["0", "1"]);
    ran.assert_counts(&[]);
    for probe in probes() {
        assert_eq!(ran.probe(&probe).tier, Some(Tier::Relocated));
    }
    let notes = ran.observer.notes();
    let told: Vec<_> = notes.iter().map(|note| &*note.text).collect();
    assert_eq!(told.len(), 2, "the first write and the tenth: {told:?}");
    assert!(told[0].contains("the guest writes to the detour region"));
}

struct Pre;

impl Handler for Pre {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        // The guest checks the registers that the instruction preserves. RAX is overwritten by the instruction.
        hit.regs_mut().rax = 0;
        PreOutcome::Continue
    }

    fn has_post(&self) -> bool {
        false
    }
}

/// Turns the knob while the guest calls: a vCPU in a copy continues in the copy.
fn comes_and_goes(here: &Here<'_>) {
    let handled = ProbeConfig {
        action: EngineAction::Handle(std::sync::Arc::new(Pre)),
        ..new("kprobe:fn_rdtsc")
    };
    let guest = here
        .guest("run=calls=60,smp=60")
        .with(probes().iter().map(|probe| new(probe)).chain([handled]))
        .prepare();
    let (control, engine) = (guest.session.control(), guest.session.engine().clone());
    let ended = AtomicBool::new(false);
    let ran = thread::scope(|scope| {
        let turner = scope.spawn(|| turn(&control, &engine, &ended));
        let ran = guest.run();
        ended.store(true, Ordering::Relaxed);
        turner.join().expect("turned");
        ran
    });
    ran.assert_good();
    let mut hits = 0;
    for probe in probes() {
        let probe = ran.probe(&probe);
        assert!(probe.exits <= 2 * probe.hits, "{probe:?}");
        hits += probe.hits;
    }
    assert!(hits > 0, "the guest is over before anybody turned the knob");
}

fn turn(control: &Control, engine: &Engine, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        thread::sleep(TURN);
        engine.disarm_all(&control.pause_all()).expect("disarmed");
        engine.set_armed(&control.pause_all(), true).expect("armed");
    }
}
