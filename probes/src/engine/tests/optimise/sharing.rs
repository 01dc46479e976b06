//! Probes that share a site and a detour.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};

use detour::testing::RING_LIMIT;
use events::{Event, ProbeId, ProbeSummary};

use super::*;
use crate::handler::{Handler, HitContext, PreOutcome, ReturnHandler};

/// A handler that counts its calls, without a post-handler.
#[derive(Default)]
pub(super) struct CountingHandler(pub(super) AtomicU64);

impl Handler for CountingHandler {
    fn pre(&self, _: &mut HitContext<'_>) -> PreOutcome {
        self.0.fetch_add(1, Ordering::Relaxed);
        PreOutcome::Continue
    }

    fn has_post(&self) -> bool {
        false
    }
}

impl ReturnHandler for CountingHandler {
    fn ret(&self, _: &mut HitContext<'_>, _: Box<dyn Any + Send>) {}
}

/// A probe whose hits all exit.
pub(super) fn handled(name: &str) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: EngineAction::Handle(Arc::new(CountingHandler::default())),
        ..new(name)
    }
}

/// A return probe.
pub(super) fn followed(name: &str, action: impl Into<EngineAction>) -> ProbeConfig<EngineAction> {
    let spec = format!("kretprobe:{name}").parse::<ProbeSpec>();
    ProbeConfig::from(spec.expect("a probe")).with_action(action.into())
}

pub(super) fn filtered(filter: &str, new: ProbeConfig<EngineAction>) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        filter: Some(filter.parse().expect("a filter")),
        ..new
    }
}

pub(super) fn sum(name: &str) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: Action::Aggregate("sum(arg0)".parse().expect("an aggregate")).into(),
        ..new(name)
    }
}

/// `mov rax, function; call rax; nop; ret`
pub(super) fn caller_of(function: Gva) -> [u8; 11] {
    let [a, b, c, d, ..] = function.0.to_le_bytes();
    [0x48, 0xc7, 0xc0, a, b, c, d, 0xff, 0xd0, 0x90, 0xc3]
}

/// A function and the caller, on a guest with support for injected `int3`s.
struct Guest {
    rig: Rig,
    probed: Gva,
    caller: Gva,
}

impl Guest {
    fn with(new: &[ProbeConfig<EngineAction>]) -> Self {
        let (mut kernel, probed) = roomy_on_3();
        let caller = kernel.function("caller", &caller_of(probed));
        int3::handler(&mut kernel);
        let rig = Rig::with(&kernel, &[], ABILITIES);
        int3::table(&rig);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        rig.engine.register(&rig.paused, new).expect("registered");
        Self {
            rig,
            probed,
            caller,
        }
    }

    /// A guest with the jump, an open ring, and an `int3` at the return site.
    fn warm(new: &[ProbeConfig<EngineAction>]) -> Self {
        let guest = Self::with(new);
        for _ in 0..4 {
            guest.call(1);
        }
        assert_eq!(guest.rig.shown::<1>(guest.probed), [0xe9]);
        guest
    }

    fn call(&self, argument: u64) {
        assert_eq!(self.rig.call(self.caller, argument), argument + 1);
    }

    fn add(&self, new: ProbeConfig<EngineAction>) -> ProbeId {
        let rig = &self.rig;
        rig.engine
            .register(&rig.paused, &[new])
            .expect("registered")[0]
    }

    fn remove(&self, id: ProbeId) {
        let rig = &self.rig;
        rig.engine.unregister(&rig.paused, &[id]).expect("removed");
    }

    fn summaries(&self) -> Vec<ProbeSummary> {
        self.rig.engine.inventory().summaries()
    }

    fn exits(&self) -> u64 {
        self.summaries().iter().map(|probe| probe.exits).sum()
    }
}

#[test]
fn probes_of_every_kind_share_a_detour_without_exits() {
    let looks = Arc::new(CountingHandler::default());
    let guest = Guest::warm(&[
        new("probed"),
        followed("probed", Action::Trace),
        count("probed"),
        filtered("arg0 < 10", count("probed")),
        sum("probed"),
        followed("probed", Action::Count),
        filtered("arg0 > 1000", handled("probed")),
        count("probed"),
        ProbeConfig {
            action: EngineAction::Handle(Arc::clone(&looks) as _),
            ..filtered("arg0 == 7", new("probed"))
        },
    ]);
    let exits = guest.exits();
    for n in 0..100 {
        guest.call(n);
    }
    let told = guest.summaries();
    let hits: Vec<_> = told.iter().map(|probe| probe.hits).collect();
    assert_eq!(hits, [104, 104, 104, 14, 104, 104, 0, 104, 1]);
    // The exits of the handler for which the filter accepts.
    assert_eq!(
        (guest.exits() - exits, looks.0.load(Ordering::Relaxed)),
        (1, 1)
    );
    for probe in &told {
        assert_eq!(probe.tier, Some(Tier::Optimised), "{probe:?}");
        assert_eq!(probe.unoptimised, None);
        if let Some(returns) = probe.returns {
            assert_eq!((returns, probe.in_flight), (104, Some(0)), "{probe:?}");
        }
    }
    let result = told[4].result.as_ref().expect("it has one").to_string();
    assert!(result.contains("4954"), "{result}");
    assert_eq!(guest.rig.hits().len(), 104);
    assert!(guest.rig.notes().is_empty());
}

/// From the plant, over the exits of a closed ring and of unknown return addresses, to no exits: each execution is one hit of
/// each probe.
#[test]
fn exit_of_one_part_reports_no_hit_of_another() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let probes = [
            new("probed"),
            followed("probed", Action::Trace),
            new("probed"),
        ];
        let guest = Guest::with(&order.map(|index| probes[index].clone()));
        for calls in 1..6 {
            guest.call(calls);
            for probe in guest.summaries() {
                assert_eq!(probe.hits, calls, "{order:?}: {probe:?}");
            }
            assert_eq!(guest.rig.hits().len() as u64, 2 * calls, "{order:?}");
        }
        let told = guest.rig.hits();
        assert!(
            told.iter()
                .map(|hit| hit.args[0].0)
                .eq((1..6).flat_map(|n| [n, n]))
        );
        let events = guest.rig.events.0.lock().expect("lock");
        let returns = events
            .iter()
            .filter(|event| matches!(event, Event::Return(_)));
        assert_eq!(returns.count(), 5, "{order:?}");
    }
}

/// The ring fills up between two parts of one execution: the ring has room for one record more than whole calls need.
#[test]
fn ring_that_is_full_for_the_second_part_loses_nothing() {
    let guest = Guest::warm(&[new("probed"), new("probed"), new("probed"), count("probed")]);
    let rig = &guest.rig;
    let exits = guest.exits();
    for _ in 0..RING_LIMIT / 3 + 10 {
        guest.call(5);
    }
    let calls = 4 + RING_LIMIT / 3 + 10;
    let told = guest.summaries();
    assert!(told.iter().all(|probe| probe.hits == calls), "{told:?}");
    assert_eq!(rig.hits().len() as u64, 3 * calls);
    assert_eq!((guest.exits() - exits, RING_LIMIT % 3), (1, 1));
}

/// A task is anywhere in the detour of one set of probes when another set takes over. Each probe from before the call counts the
/// call once, and a later probe does not.
#[test]
fn task_in_an_earlier_detour_counts_for_the_same_probes() {
    type Change = fn(&Guest) -> Option<usize>;
    let changes: [(&str, Change); 5] = [
        ("one like the first comes", |guest| {
            guest.add(count("probed"));
            None
        }),
        ("one that records comes", |guest| {
            guest.add(new("probed"));
            None
        }),
        ("one that exits comes", |guest| {
            guest.add(handled("probed"));
            None
        }),
        ("the first goes, and one like it comes", |guest| {
            guest.remove(guest.rig.engine.inventory().ids()[0]);
            guest.add(sum("probed"));
            Some(0)
        }),
        ("the last is disabled, enabled", |guest| {
            let (rig, id) = (&guest.rig, guest.rig.engine.inventory().ids()[3]);
            for on in [false, true] {
                rig.engine.set_enabled(&rig.paused, id, on).expect("set");
            }
            None
        }),
    ];
    for (name, change) in changes {
        for steps in 3.. {
            let guest = Guest::warm(&[
                count("probed"),
                count("probed"),
                new("probed"),
                followed("probed", Action::Count),
            ]);
            let rig = &guest.rig;
            let mut vcpu = rig.calling(guest.caller, 4, STACK - 0x8000);
            if rig.run(&mut vcpu, steps) == Stepped::Returned {
                assert!(steps > 100, "each instruction of it");
                break;
            }
            let gone = change(&guest);
            assert_eq!(rig.run(&mut vcpu, 3000), Stepped::Returned);
            assert_eq!(vcpu.regs.rax, 5);
            let told = guest.summaries();
            let stay = (0..4).filter(|index| Some(*index) != gone);
            for (probe, index) in told.iter().zip(stay) {
                assert_eq!(probe.hits, 5, "{name}, {steps}: {index} {probe:?}");
            }
            guest.call(1);
            let again = guest.summaries();
            for (before, after) in told.iter().zip(&again) {
                assert_eq!(after.hits, before.hits + 1, "{name}, {steps}: {after:?}");
            }
        }
    }
}

/// However often a probe is added and removed, memory of the region is taken once.
#[test]
fn probe_that_comes_and_goes_beside_another_finds_the_same_detours() {
    let guest = Guest::warm(&[count("probed")]);
    let (rig, probed) = (&guest.rig, guest.probed);
    let alone = rig.shown::<5>(probed);
    let mut shared = None;
    for n in 0..50 {
        let id = guest.add(count("probed"));
        let jump = rig.shown::<5>(probed);
        assert_ne!(jump, alone);
        assert_eq!(*shared.get_or_insert(jump), jump, "round {n}");
        guest.call(1);
        let hits: Vec<_> = guest.summaries().iter().map(|probe| probe.hits).collect();
        assert_eq!(hits, [5 + n, 1]);
        guest.remove(id);
        assert_eq!(rig.shown::<5>(probed), alone);
    }
}

#[test]
fn probe_that_needs_an_exit_is_named_by_those_beside_it() {
    let guest = Guest::warm(&[count("probed")]);
    let why = |index: usize| guest.rig.probe(index).unoptimised;
    let [handled, follows] = [
        handled("probed"),
        followed(
            "probed",
            EngineAction::HandleReturn(Arc::new(CountingHandler::default())),
        ),
    ];
    for (new, name) in [
        (handled, "`kprobe:probed`"),
        (follows, "`kretprobe:probed`"),
    ] {
        let id = guest.add(new);
        let told = why(0).expect("a reason");
        assert!(told.contains(name) && told.contains("exit"), "{told}");
        assert_eq!(why(1), None, "it is why itself");
        guest.call(1);
        guest.remove(id);
        assert_eq!(why(0), None);
        assert_eq!(guest.rig.probe(0).tier, Some(Tier::Optimised));
    }
    assert_eq!(guest.rig.probe(0).hits, 6);
}

/// A probe on a followed call's return site: the return is reported, and then the hit.
#[test]
fn probe_where_a_call_returns_to_shares_that_detour() {
    let guest = Guest::warm(&[
        followed("probed", Action::Trace),
        new("caller+0x9"),
        count("caller+0x9"),
    ]);
    let exits = guest.exits();
    for n in 0..20 {
        guest.call(n);
    }
    let told = guest.summaries();
    assert_eq!([told[0].hits, told[1].hits, told[2].hits], [24; 3]);
    assert_eq!((told[0].returns, guest.exits()), (Some(24), exits));
    let events = guest.rig.events.0.lock().expect("lock");
    let told: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Hit(hit) => Some(("hit", hit.regs.rax.0)),
            Event::Return(returned) => Some(("return", returned.retval.0)),
            _ => None,
        })
        .collect();
    let expected = |n: u64| [("return", n + 1), ("hit", n + 1)];
    assert_eq!(told[8..], (0..20).flat_map(expected).collect::<Vec<_>>());
}

/// A return handler makes each return exit, and the hits of a probe at a return site.
#[test]
fn probe_where_a_call_returns_to_says_that_returns_exit() {
    let guest = Guest::warm(&[followed("probed", Action::Trace), count("caller+0x9")]);
    let why = || guest.rig.probe(1).unoptimised;
    assert_eq!(why(), None);
    let handler = EngineAction::HandleReturn(Arc::new(CountingHandler::default()));
    let id = guest.add(followed("caller", handler));
    assert!(
        why().is_some_and(|why| why.contains("handler")),
        "{:?}",
        why()
    );
    guest.call(1);
    guest.remove(id);
    guest.call(1);
    assert_eq!((why(), guest.rig.counted(1).0), (None, 6));
    assert_eq!(guest.rig.probe(1).tier, Some(Tier::Optimised));
}

/// One probe is on the call of ftrace, another on the instruction behind the call.
#[test]
fn probes_at_an_ftrace_call_and_behind_it_share_the_jump_over_the_call() {
    let (rig, at, _) = traced();
    for other in ["traced+0x5", "traced"] {
        rig.engine
            .register(&rig.paused, &[count(other)])
            .expect("registered");
    }
    let [jump, _, _, _, _, plant] = rig.shown::<6>(at);
    assert_eq!((jump, plant), (0xe9, 0xee));
    for n in 0..10 {
        assert_eq!(rig.call(at, n), n + 1);
    }
    // A task interrupted before the plant, in the time without a jump.
    assert_eq!(rig.call(at.wrapping_add(5), 1), 2);
    for index in 0..3 {
        assert_eq!(rig.counted(index), (11, 1, Some(Tier::Optimised)));
    }
}

/// The work of each probe is chosen while all vCPUs are paused.
#[test]
fn more_probes_than_a_detour_serves_keep_the_plant_with_the_reason() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"; 17]);
    for n in 0..3 {
        assert_eq!(rig.call(at, n), n + 1);
    }
    assert_eq!(rig.shown::<1>(at), [0xee]);
    assert_eq!(rig.counted(16).0, 3);
    let why = rig.probe(0).unoptimised.expect("a reason");
    assert!(why.contains("17 probes"), "{why}");
    let last = rig.engine.inventory().ids()[16];
    rig.engine.unregister(&rig.paused, &[last]).expect("done");
    rig.call(at, 0);
    assert_eq!(rig.shown::<1>(at), [0xe9]);
    assert_eq!(rig.counted(15).0, 4);
}

/// A client that changes filters without end does not exhaust the memory for other sites.
#[test]
fn number_of_detours_of_a_site_is_bounded() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    let (engine, paused) = (&rig.engine, &rig.paused);
    let mut full = 0;
    for value in 0..1100 {
        let before = engine.inventory().ids();
        engine.unregister(paused, &before).expect("done");
        let new = [filtered(&format!("arg0 == {value}"), count("probed"))];
        engine.register(paused, &new).expect("registered");
        assert_eq!(rig.call(at, value), value + 1);
        let probe = rig.probe(0);
        assert_eq!(probe.hits, 1, "{value}");
        full += usize::from(
            probe
                .unoptimised
                .is_some_and(|why| why.contains("one place")),
        );
    }
    assert_eq!(full, 1100 - 1023);
}
