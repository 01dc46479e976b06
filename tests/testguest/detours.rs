//! Copies of instructions in the detour region: the guest runs them, and finds nothing that it can change.

use std::sync::Arc;

use probes::{Action, Handler, HitContext, NewProbe, PreOutcome, ProbeSpec, Tier};

use crate::guest::{Guest, Ran, plant_bytes};

/// What the processor has to execute, and what does not fault.
const COPIED: [&str; 3] = ["fn_rdtsc", "fn_cpuid", "fn_cr3"];

fn probes() -> [String; 3] {
    COPIED.map(|function| format!("kprobe:{function}"))
}

fn found(ran: &Ran) -> Vec<&str> {
    let detour = ran
        .outcome
        .passed
        .iter()
        .filter(|(name, _)| name == "detour");
    detour.map(|(_, fields)| &*fields["found"]).collect()
}

#[test]
fn what_only_the_processor_can_do_is_run_as_a_copy_with_one_exit_a_hit() {
    for plant in plant_bytes() {
        for cpus in [1, 2] {
            let run = if cpus == 1 { "calls=10" } else { "smp=10" };
            let ran = Guest::new(&format!("run={run},checksum,{run},checksum"))
                .probes(probes())
                .plant(plant)
                .cpus(cpus)
                .run();
            ran.assert_good();
            for probe in probes() {
                let probe = ran.probe(&probe);
                assert_eq!(probe.tier, Some(Tier::Relocated), "{plant:?}: {probe:?}");
                assert!(probe.hits >= 20);
                assert_eq!(probe.exits, probe.hits);
            }
            ran.assert_counts(&[]);
        }
    }
}

/// The guest sees the region only when there is a copy, and what it writes there is dropped.
#[test]
fn the_guest_cannot_write_to_a_copy() {
    let ran = Guest::new("run=detour,calls=5,detour=0,calls=5")
        .probes(["kprobe:fn_push"])
        .run();
    ran.assert_good();
    assert_eq!(found(&ran), ["0", "0"], "nobody needs a region");

    let ran = Guest::new("run=detour=0,calls=5,detour=10,calls=5")
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
        // What the instruction leaves alone, the guest checks; this it overwrites.
        hit.regs_mut().rax = 0;
        PreOutcome::Continue
    }

    fn has_post(&self) -> bool {
        false
    }
}

/// The knob, turned while the guest calls: whoever is in a copy leaves it, and the region comes and goes.
#[test]
fn the_region_comes_and_goes_while_the_guest_runs() {
    let guest = Guest::new("run=calls=60,checksum,smp=60,checksum")
        .cpus(2)
        .probes(probes())
        .prepare();
    let control = guest.session.control();
    let engine = Arc::clone(guest.session.engine());
    let observer = guest.observer.clone();
    let handled = NewProbe {
        action: Action::Handle(Arc::new(Pre)),
        ..NewProbe::from("kprobe:fn_rdtsc".parse::<ProbeSpec>().expect("a probe"))
    };
    engine
        .register(&control.pause_all(), &[handled])
        .expect("registered");
    let turner = std::thread::spawn(move || {
        for round in 1..=12 {
            observer.wait_for_hits(10 * round);
            engine.disarm_all(&control.pause_all()).expect("disarmed");
            engine.set_armed(&control.pause_all(), true).expect("armed");
        }
        engine.disarm_all(&control.pause_all()).expect("disarmed");
    });
    let ran = guest.run();
    turner.join().expect("the guest lived long enough");
    ran.assert_good();
    for probe in probes() {
        let probe = ran.probe(&probe);
        assert!(probe.hits > 0 && probe.exits <= 2 * probe.hits);
    }
}
