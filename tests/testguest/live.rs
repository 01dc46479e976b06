//! Probes registered, disabled, enabled and removed while the guest runs, and handlers that meddle.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use probes::{
    Action, EntryOutcome, Handler, HitContext, NewProbe, PreOutcome, ProbeState, ReturnHandler,
};

use crate::guest::Guest;

fn new(spec: &str, action: Action) -> NewProbe {
    NewProbe {
        action,
        ..NewProbe::from(spec.parse::<probes::ProbeSpec>().expect("a probe"))
    }
}

/// Counts before and after.
#[derive(Default)]
struct Both {
    pre: AtomicU64,
    post: AtomicU64,
    /// RIP moved on in between.
    moved: AtomicU64,
}

impl Handler for Both {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        self.pre.fetch_add(1, Ordering::Relaxed);
        self.moved.store(hit.regs().rip, Ordering::Relaxed);
        PreOutcome::Continue
    }

    fn post(&self, hit: &mut HitContext<'_>) {
        self.post.fetch_add(1, Ordering::Relaxed);
        assert_ne!(
            hit.regs().rip,
            self.moved.load(Ordering::Relaxed),
            "the instruction was executed"
        );
    }
}

#[test]
fn pre_and_post_handlers_are_called_around_each_instruction() {
    let guest = Guest::new("run=calls=10")
        .probes(["kprobe:fn_ret"])
        .prepare();
    let counted = Arc::new(Both::default());
    let handler: Arc<dyn Handler> = counted.clone();
    let probes = ["kprobe:fn_push", "kprobe:fn_out", "kprobe:fn_xor"]
        .map(|spec| new(spec, Action::Handle(handler.clone())));
    let paused = guest.session.control();
    guest
        .session
        .engine()
        .register(&paused.pause_all(), &probes)
        .expect("registered");
    let ran = guest.run();
    ran.assert_good();
    let entries: u64 = ["fn_push", "fn_out", "fn_xor"]
        .iter()
        .map(|name| ran.outcome.counts[*name])
        .sum();
    assert_eq!(entries, 30);
    assert_eq!(counted.pre.load(Ordering::Relaxed), entries);
    assert_eq!(counted.post.load(Ordering::Relaxed), entries);
}

/// Leaves the function at once, with a value of its own.
struct Skip;

impl Handler for Skip {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        hit.return_now(0x5eed)
            .expect("the return address is on the stack");
        PreOutcome::Resume
    }
}

/// Sees what the function has returned, and what its entry handler kept for it.
#[derive(Default)]
struct SeesReturns {
    returns: AtomicU64,
    skipped: AtomicU64,
}

impl ReturnHandler for SeesReturns {
    fn entry(&self, hit: &mut HitContext<'_>) -> EntryOutcome {
        EntryOutcome::Track(Box::new(hit.regs().rdi))
    }

    fn ret(&self, hit: &mut HitContext<'_>, data: Box<dyn Any + Send>) {
        assert!(
            data.downcast::<u64>().is_ok(),
            "the entry handler's data comes back"
        );
        self.returns.fetch_add(1, Ordering::Relaxed);
        self.skipped
            .fetch_add(u64::from(hit.regs().rax == 0x5eed), Ordering::Relaxed);
    }
}

#[test]
fn a_function_can_be_skipped_with_a_value() {
    let guest = Guest::new("run=calls=7")
        .probes(["kprobe:fn_push"])
        .prepare();
    let seen = Arc::new(SeesReturns::default());
    let probes = [
        new("kretprobe:fn_mov_imm", Action::HandleReturn(seen.clone())),
        new("kprobe:fn_mov_imm", Action::Handle(Arc::new(Skip))),
    ];
    let control = guest.session.control();
    guest
        .session
        .engine()
        .register(&control.pause_all(), &probes)
        .expect("registered");
    let ran = guest.run();
    // The guest notices that the function did not do its work, which is the point.
    assert!(!ran.outcome.is_good());
    let returns = seen.returns.load(Ordering::Relaxed);
    assert!(returns > 0, "it was called");
    assert_eq!(
        seen.skipped.load(Ordering::Relaxed),
        returns,
        "and never ran"
    );
}

#[test]
fn probes_come_and_go_while_the_guest_runs() {
    let guest = Guest::new("run=smp=60")
        .cpus(2)
        .probes(["kprobe:fn_push"])
        .prepare();
    let (control, engine, observer) = (
        guest.session.control(),
        guest.session.engine().clone(),
        guest.observer.clone(),
    );
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            observer.wait_for_hits(4);
            for round in 0..40 {
                let spec = [
                    "kprobe:fn_sub",
                    "kretprobe:fn_call",
                    "kprobe:fn_rep",
                    "kprobe:fn_jcc",
                ][round % 4];
                let ids = engine
                    .register(&control.pause_all(), &[new(spec, Action::Count)])
                    .expect("registered");
                let id = ids[0];
                assert!(
                    engine
                        .set_enabled(&control.pause_all(), id, false)
                        .expect("disabled")
                );
                assert!(
                    engine
                        .set_enabled(&control.pause_all(), id, true)
                        .expect("enabled")
                );
                if round % 3 != 0 {
                    assert_eq!(
                        engine
                            .unregister(&control.pause_all(), &[id])
                            .expect("removed"),
                        1
                    );
                }
            }
            engine
                .set_armed(&control.pause_all(), false)
                .expect("disarmed");
            engine.set_armed(&control.pause_all(), true).expect("armed");
        });
        guest.run()
    });
    ran.assert_good();
    for probe in &ran.summary.probes {
        assert_eq!(probe.state, ProbeState::Armed, "{probe:?}");
        if let (Some(returns), Some(in_flight)) = (probe.returns, probe.in_flight) {
            assert_eq!(
                probe.hits,
                returns + in_flight + probe.missed.values().sum::<u64>(),
                "{probe:?}"
            );
        }
    }
}
