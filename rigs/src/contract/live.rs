//! Probes registered, disabled, enabled and removed while the guest runs, and the knob.

use std::thread;
use std::time::Duration;

use events::{ProbeId, ProbeState};
use manifest::{Action, ProbeConfig};
use probes::{Engine, EngineAction};
use vmm::Control;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Prepared, Ran, new};
use super::observer::Observer;

pub(super) const CASES: [Case; 6] = [
    Case::new("enable", Plants::Each, &[1], enable),
    Case::new("enable-many", Plants::Each, &[1], enable_many),
    Case::new("knob", Plants::Each, &[1], knob),
    Case::new("transaction", Plants::Each, &[1], transaction),
    Case::new("unregister", Plants::Each, &[1], unregister),
    Case::new("live-smp", Plants::Each, &[2], come_and_go),
];

/// The number of calls of each function by the guest.
const CALLS: u64 = 60;
/// The number of hits of the clock probe before the change: the guest is in the middle of the run.
const MIDDLE: usize = 16;
/// The clock probe: its hits show the progress of the guest. The probe is always present.
const CLOCK: &str = "kprobe:fn_nop";

/// A control thread's hands.
struct Hands<'a> {
    control: Control,
    engine: &'a Engine,
}

impl Hands<'_> {
    fn set(&self, ids: &[ProbeId], enabled: bool) {
        let paused = self.control.pause_all();
        for id in ids {
            let known = self.engine.set_enabled(&paused, *id, enabled);
            assert!(known.expect("it is changed"), "it is known");
        }
    }

    fn hits(&self, name: &str) -> u64 {
        let summaries = self.engine.inventory().summaries();
        let found = summaries.iter().find(|probe| probe.probe == name);
        found.expect(name).hits
    }
}

/// Runs the guest while another thread does `work`.
fn beside(guest: Prepared<'_>, work: impl FnOnce(&Hands<'_>, &Observer) + Send) -> Ran {
    let (control, engine) = (guest.session.control(), guest.session.engine().clone());
    let observer = guest.observer.clone();
    let ran = thread::scope(|scope| {
        let working = scope.spawn(|| {
            let engine = &*engine;
            work(&Hands { control, engine }, &observer);
        });
        let ran = guest.run();
        working.join().expect("worked");
        ran
    });
    ran.assert_good();
    ran
}

/// Does something in the middle of a run, and something else after some hits more.
fn in_the_middle(
    guest: Prepared<'_>,
    first: impl FnOnce(&Hands<'_>) + Send,
    then: impl FnOnce(&Hands<'_>) + Send,
) -> Ran {
    let ran = beside(guest, |hands, observer| {
        observer.wait_for_hits(MIDDLE);
        first(hands);
        observer.wait_for_hits(observer.hits().len() + MIDDLE / 2);
        then(hands);
    });
    assert_eq!(
        ran.counted("fn_nop"),
        CALLS,
        "the guest has not ended early"
    );
    ran
}

fn counting(spec: &str, enabled: bool) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: Action::Count.into(),
        enabled,
        ..new(spec)
    }
}

fn prepare<'a>(
    here: &'a Here<'a>,
    probes: impl IntoIterator<Item = ProbeConfig<EngineAction>>,
) -> Prepared<'a> {
    let probes = [new(CLOCK)].into_iter().chain(probes);
    here.guest(&format!("run=calls={CALLS}"))
        .with(probes)
        .prepare()
}

/// Enables a probe registered disabled, disables another, and leaves a third alone.
fn enable(here: &Here<'_>) {
    let (later, gone, stays) = ("kprobe:fn_push", "kprobe:fn_mov", "kprobe:fn_sub");
    let guest = prepare(
        here,
        [
            counting(later, false),
            counting(gone, true),
            counting(stays, true),
        ],
    );
    let ids = guest.session.engine().inventory().ids();
    let [_, later_id, gone_id, _] = ids[..] else {
        panic!("four probes");
    };
    let at_change = std::sync::OnceLock::new();
    let ran = in_the_middle(
        guest,
        |hands| {
            assert_eq!(hands.hits(later), 0, "it is disabled");
            hands.set(&[later_id], true);
            hands.set(&[gone_id], false);
            at_change.get_or_init(|| hands.hits(gone));
        },
        |_| (),
    );
    let states = [later, gone, stays].map(|name| ran.probe(name).state);
    use ProbeState::{Armed, Disabled};
    assert_eq!(states, [Armed, Disabled, Armed]);
    assert!((1..CALLS).contains(&ran.probe(later).hits));
    assert_eq!(Some(&ran.probe(gone).hits), at_change.get());
    assert!((1..CALLS).contains(&ran.probe(gone).hits));
    assert_eq!(ran.probe(stays).hits, CALLS);
}

const MANY: [&str; 5] = [
    "kprobe:fn_push",
    "kretprobe:fn_call",
    "kprobe:fn_rep",
    "kprobe:fn_jcc",
    "kprobe:fn_push",
];

/// Switches several probes in the same pause, two of them at the same instruction.
fn enable_many(here: &Here<'_>) {
    let guest = prepare(here, MANY.map(|spec| counting(spec, true)));
    let ids = guest.session.engine().inventory().ids();
    let many = ids[1..].to_vec();
    let again = many.clone();
    let ran = in_the_middle(
        guest,
        |hands| hands.set(&many, false),
        |hands| {
            for probe in &hands.engine.inventory().summaries()[1..] {
                assert_eq!(probe.state, ProbeState::Disabled, "{probe:?}");
            }
            hands.set(&again, true);
        },
    );
    for probe in &ran.summary.probes[1..] {
        assert_eq!(probe.state, ProbeState::Armed);
        assert!((1..CALLS).contains(&probe.hits), "{probe:?}");
    }
}

/// Off takes every plant away and leaves each probe's own state.
fn knob(here: &Here<'_>) {
    let (on, off) = ("kprobe:fn_push", "kprobe:fn_sub");
    let guest = prepare(here, [counting(on, true), counting(off, false)]);
    let ran = beside(guest, |hands, observer| {
        let set = |armed| {
            let paused = hands.control.pause_all();
            hands.engine.set_armed(&paused, armed).expect("changed");
        };
        let hits = || -> Vec<u64> {
            let probes = hands.engine.inventory().summaries();
            probes.iter().map(|probe| probe.hits).collect()
        };
        observer.wait_for_hits(MIDDLE);
        set(false);
        let before = hits();
        for probe in hands.engine.inventory().summaries() {
            assert_eq!(probe.state, ProbeState::Disabled, "{probe:?}");
        }
        // The guest runs on in between.
        thread::sleep(Duration::from_millis(1));
        assert_eq!(hits(), before);
        set(true);
    });
    assert_eq!(ran.probe(CLOCK).state, ProbeState::Armed);
    assert_eq!(ran.probe(on).state, ProbeState::Armed);
    let off = ran.probe(off);
    assert_eq!((off.state, off.hits), (ProbeState::Disabled, 0));
    assert!(ran.probe(on).hits >= 1);
}

/// Several are registered together or not at all.
fn transaction(here: &Here<'_>) {
    let good = counting("kprobe:fn_push", true);
    let bad = counting("kprobe:no_such_function", true);
    let guest = prepare(here, []);
    let ran = in_the_middle(
        guest,
        |hands| {
            let paused = hands.control.pause_all();
            let refused = hands
                .engine
                .register(&paused, &[good.clone(), bad, good.clone()]);
            let said = refused.expect_err("there is no such function").to_string();
            assert!(said.contains("no_such_function"), "{said}");
            assert_eq!(hands.engine.inventory().ids().len(), 1, "as before");
        },
        |hands| {
            let paused = hands.control.pause_all();
            let three = [good.clone(), good.clone(), good.clone()];
            let ids = hands.engine.register(&paused, &three).expect("registered");
            assert_eq!(ids.len(), 3);
        },
    );
    let [_, added @ ..] = &ran.summary.probes[..] else {
        panic!("the clock");
    };
    assert_eq!(added.len(), 3);
    for probe in added {
        // Registered at once, they have seen the same.
        assert_eq!(probe.hits, added[0].hits);
        assert!((1..CALLS).contains(&probe.hits), "{probe:?}");
    }
}

/// Removes several probes at once, and then again, when the engine no longer knows the probes. A probe at the same instruction stays.
fn unregister(here: &Here<'_>) {
    let guest = prepare(here, MANY.map(|spec| counting(spec, true)));
    let ids = guest.session.engine().inventory().ids();
    let ran = in_the_middle(
        guest,
        |hands| {
            let paused = hands.control.pause_all();
            let gone = &ids[1..5];
            assert_eq!(hands.engine.unregister(&paused, gone).expect("gone"), 4);
            assert_eq!(hands.engine.unregister(&paused, gone).expect("gone"), 0);
        },
        |_| (),
    );
    let names: Vec<&str> = ran
        .summary
        .probes
        .iter()
        .map(|probe| &*probe.probe)
        .collect();
    assert_eq!(names, [CLOCK, MANY[4]]);
    assert_eq!(ran.probe(MANY[4]).hits, CALLS, "the one that stays");
}

/// Probes of every kind registered, disabled, enabled and removed, over and over, while two vCPUs hit them.
fn come_and_go(here: &Here<'_>) {
    let guest = here
        .guest("run=smp=60")
        .probes(["kprobe:fn_push"])
        .prepare();
    let ran = beside(guest, |hands, observer| {
        let engine = hands.engine;
        observer.wait_for_hits(4);
        for round in 0..40 {
            let probe = counting(MANY[round % 4], true);
            let ids = {
                let paused = hands.control.pause_all();
                engine.register(&paused, &[probe]).expect("registered")
            };
            hands.set(&ids, false);
            hands.set(&ids, true);
            if round % 3 != 0 {
                let paused = hands.control.pause_all();
                assert_eq!(engine.unregister(&paused, &ids).expect("removed"), 1);
            }
        }
    });
    assert_eq!(ran.hits("fn_push"), 120);
    assert_eq!(ran.summary.probes.len(), 1 + 14, "those that stayed");
    for probe in &ran.summary.probes {
        assert_eq!(probe.state, ProbeState::Armed, "{probe:?}");
    }
}
