//! Detours with programs: filters, aggregates, and handlers for hits that a filter accepts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::handler::{Handler, HitContext, PreOutcome};

fn filtered(action: impl Into<EngineAction>, filter: &str) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: action.into(),
        filter: Some(filter.parse().expect("a filter")),
        ..new("probed")
    }
}

/// A rig with a probe and a jump.
fn with(new: ProbeConfig<EngineAction>) -> (Rig, Gva) {
    let (kernel, at) = roomy_on_3();
    let rig = Rig::with(&kernel, &[], ABILITIES);
    rig.engine.set_optimising(&rig.paused, true).expect("set");
    rig.engine
        .register(&rig.paused, &[new])
        .expect("registered");
    // The jump comes with a hit, or with an execution that the filter rejects.
    assert_eq!(rig.call(at, 1000), 1001);
    assert_eq!(rig.call(at, 1000), 1001);
    assert_eq!(rig.shown::<1>(at), [0xe9]);
    (rig, at)
}

#[test]
fn rejected_execution_is_no_hit() {
    for action in [Action::Count, Action::Trace] {
        let (rig, at) = with(filtered(action, "arg0 < 10 && cpu == 3"));
        for n in 0..20 {
            assert_eq!(rig.call(at, n), n + 1);
        }
        let (hits, exits, tier) = rig.counted(0);
        assert_eq!((hits, tier), (10, Some(Tier::Optimised)));
        // An exit at the plant, and another while the ring is not open.
        assert!(exits <= 2, "{exits}");
    }
    let (rig, at) = with(filtered(Action::Count, "cpu != 3"));
    rig.call(at, 0);
    assert_eq!(rig.counted(0), (0, 1, Some(Tier::Optimised)));
}

#[test]
fn values_that_a_detour_has_added_are_part_of_the_result() {
    for (aggregate, expected) in [
        ("sum(arg0)", "2190"),
        ("min(arg0)", "0"),
        ("max(arg0)", "1000"),
    ] {
        let action = Action::Aggregate(aggregate.parse().expect("an aggregate")).into();
        let (rig, at) = with(ProbeConfig {
            action,
            ..new("probed")
        });
        for n in 0..10 {
            rig.call(at, n);
        }
        // Some of the hits exit.
        rig.engine.set_optimising(&rig.paused, false).expect("set");
        for n in 10..20 {
            rig.call(at, n);
        }
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let told = rig.probe(0);
        assert_eq!(told.hits, 22, "{aggregate}");
        let result = told.result.expect("it has one").to_string();
        assert!(result.contains(expected), "{aggregate}: {result}");
        // The probe counts on after disarming and arming.
        let id = rig.engine.inventory().ids()[0];
        rig.engine.set_enabled(&rig.paused, id, false).expect("set");
        rig.call(at, 5000);
        let now = rig.probe(0);
        assert_eq!(
            (now.hits, now.result.map(|now| now.to_string())),
            (22, Some(result))
        );
    }
}

#[derive(Default)]
struct Seen(AtomicU64);

impl Handler for Seen {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        self.0.fetch_add(hit.regs().rdi, Ordering::Relaxed);
        PreOutcome::Continue
    }

    fn has_post(&self) -> bool {
        false
    }
}

#[test]
fn only_accepted_executions_exit_and_call_the_handler() {
    let seen = Arc::new(Seen::default());
    let (rig, at) = with(filtered(
        EngineAction::Handle(Arc::clone(&seen) as _),
        "arg0 < 3",
    ));
    for n in 0..100 {
        assert_eq!(rig.call(at, n), n + 1);
    }
    // One more exit at the plant, before the jump, where the filter rejected the execution.
    assert_eq!(rig.counted(0), (3, 4, Some(Tier::Optimised)));
    assert_eq!(seen.0.load(Ordering::Relaxed), 1 + 2);
}

struct Skips;

impl Handler for Skips {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        hit.return_now(77).expect("there is a stack");
        PreOutcome::Resume
    }

    fn has_post(&self) -> bool {
        false
    }
}

#[test]
fn handler_sets_the_address_to_resume_at() {
    let (rig, at) = with(filtered(EngineAction::Handle(Arc::new(Skips)), "arg0 == 4"));
    assert_eq!(
        (rig.call(at, 3), rig.call(at, 4), rig.call(at, 5)),
        (4, 77, 6)
    );
    assert_eq!(rig.counted(0), (1, 2, Some(Tier::Optimised)));
}

/// Writes four bytes behind the opcode of the instruction at an address.
struct Rewrites {
    at: Gva,
    in_post: bool,
}

impl Rewrites {
    fn rewrite(&self, hit: &mut HitContext<'_>) {
        let operand = self.at.wrapping_add(2);
        hit.write(operand, &[7]).expect("it is memory");
    }
}

impl Handler for Rewrites {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        if !self.in_post {
            self.rewrite(hit);
        }
        PreOutcome::Continue
    }

    fn post(&self, hit: &mut HitContext<'_>) {
        if self.in_post {
            self.rewrite(hit);
        }
    }
}

#[test]
fn write_of_a_handler_to_an_instruction_under_a_jump_is_executed() {
    for in_post in [false, true] {
        let mut kernel = SyntheticKernel::new();
        // lea eax, [rdi + 1], in seven bytes; ret
        let lea = [0x8d, 0x87, 1, 0, 0, 0, 0xc3];
        let probed = kernel.function("probed", &lea);
        let other = kernel.function("other", &PLAIN);
        let rig = Rig::counting(&kernel, &["probed"]);
        assert_eq!(rig.call(probed, 4), 5);
        assert_eq!(rig.shown::<1>(probed), [0xe9]);
        let rewrites = Rewrites {
            at: probed,
            in_post,
        };
        let handled = ProbeConfig {
            action: EngineAction::Handle(Arc::new(rewrites)),
            ..new("other")
        };
        rig.engine.register(&rig.paused, &[handled]).expect("done");
        rig.call(other, 0);
        assert_eq!(rig.own::<3>(probed), [0x8d, 0x87, 7]);
        assert_eq!(rig.call(probed, 4), 11, "in a post-handler: {in_post}");
        assert_eq!(rig.call(probed, 4), 11);
        assert_eq!(rig.counted(0).0, 3);
    }
}
