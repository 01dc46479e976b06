//! Return probes: every call is followed to its return, or counted as missed by reason.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use manifest::ProbeConfig;
use probes::{EngineAction, EntryOutcome, HitContext, ReturnHandler};

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Ran, new};

pub(super) const CASES: [Case; 10] = [
    Case::new("returns", Plants::Each, &[1], every_kind_of_function),
    Case::new("returns-recursion", Plants::Each, &[1], |here| {
        let ran = followed(here, "run=recurse=100", &["kretprobe:fn_recurse"]);
        let probe = ran.probe("kretprobe:fn_recurse");
        assert_eq!((probe.hits, probe.returns), (101, Some(101)));
        assert!(probe.missed.is_empty(), "{probe:?}");
        // The innermost call returns first, and each return value shows the call's depth.
        let returns = ran.observer.returns();
        let values: Vec<u64> = returns.iter().map(|told| told.retval.0).collect();
        assert_eq!(values, (0..=100).collect::<Vec<_>>());
    }),
    Case::new("returns-smp", Plants::Each, &[2], |here| {
        let ran = followed(here, "run=smp=20", &["kretprobe:fn_*", "kprobe:fn_*"]);
        assert_eq!(ran.probe("kretprobe:fn_push").returns, Some(40));
    }),
    Case::new("returns-handler", Plants::Each, &[1], private_data),
    Case::new("returns-declined", Plants::Each, &[1], declined),
    Case::new("returns-maxactive", Plants::Each, &[1], maxactive),
    Case::new("returns-tail", Plants::Each, &[1], |here| {
        // Both functions return to the caller of the first, at the same time: the function entered last is reported first.
        let probes = ["kretprobe:fn_tail", "kretprobe:fn_tail_target"];
        let ran = followed(here, "run=calls=10", &probes);
        let told: Vec<_> = ran.observer.returns();
        assert_eq!(told.len(), 20);
        for pair in told.chunks(2) {
            assert_eq!(&*pair[0].probe, probes[1]);
            assert_eq!(&*pair[1].probe, probes[0]);
            assert_eq!(pair[0].ip, pair[1].ip);
        }
    }),
    Case::new("returns-abandoned", Plants::Each, &[1], |here| {
        let probes = ["kretprobe:fn_left", "kretprobe:fn_leave"];
        let ran = followed(here, "run=leave=7", &probes);
        for name in probes {
            let probe = ran.probe(name);
            // The last call may still return, as far as the engine knows.
            assert_eq!((probe.hits, probe.returns), (7, Some(0)), "{probe:?}");
            assert_eq!(probe.in_flight, Some(1), "{probe:?}");
            assert_eq!(probe.missed.get("abandoned"), Some(&6), "{probe:?}");
        }
    }),
    Case::new("returns-task-ends", Plants::Each, &[1], |here| {
        let ran = followed(here, "run=task=7", &["kretprobe:fn_task"]);
        let probe = ran.probe("kretprobe:fn_task");
        let none = (probe.hits, probe.returns, probe.in_flight);
        assert_eq!(none, (7, Some(0), Some(0)), "{probe:?}");
        assert_eq!(probe.missed.get("abandoned"), Some(&7), "{probe:?}");
    }),
    Case::new("accounting", Plants::Each, &[2], |here| {
        let scenarios = "run=calls=3,recurse=20,leave=4,task=3,smp=10,recurse=9";
        let probes = ["kretprobe:fn_*", "kprobe:fn_*"].map(|spec| ProbeConfig {
            maxactive: Some(2),
            ..new(spec)
        });
        let ran = here.guest(scenarios).with(probes).run();
        assert_followed(&ran);
        let missed = &ran.probe("kretprobe:fn_recurse").missed;
        // 21 and 10 deep, and two are followed at once.
        assert_eq!(missed.get("maxactive"), Some(&27), "{missed:?}");
    }),
];

fn followed(here: &Here<'_>, cmdline: &str, probes: &[&str]) -> Ran {
    let ran = here.guest(cmdline).probes(probes).run();
    assert_followed(&ran);
    ran
}

/// The entries equal the guest's count. Each entry has returned, is in flight, or was missed. Every return was reported.
fn assert_followed(ran: &Ran) {
    ran.assert_good();
    let mut compared = 0;
    for probe in &ran.summary.probes {
        let Some(function) = probe.probe.strip_prefix("kretprobe:") else {
            assert_eq!(probe.hits, ran.counted(&probe.probe["kprobe:".len()..]));
            continue;
        };
        let counted = ran.counted(function);
        assert_eq!(probe.hits, counted, "entries of {function}");
        let returns = ran.observer.returns();
        let told = returns.iter().filter(|told| *told.probe == *probe.probe);
        assert_eq!(
            Some(told.count() as u64),
            probe.returns,
            "told returns of {function}"
        );
        compared += u64::from(counted > 0);
    }
    assert!(compared > 0, "no function was entered");
}

fn every_kind_of_function(here: &Here<'_>) {
    let ran = followed(here, "run=calls=10", &["kretprobe:fn_*"]);
    for function in ["fn_push", "fn_call", "fn_tail", "fn_tail_target", "fn_ret"] {
        let probe = ran.probe(&format!("kretprobe:{function}"));
        assert_eq!(probe.returns, Some(10), "{probe:?}");
        assert!(probe.missed.is_empty(), "{probe:?}");
    }
    // The function's first instruction is the target of the function's own jump: two of three entries are no calls, and never return.
    let looping = ran.probe("kretprobe:fn_loop");
    assert_eq!((looping.hits, looping.returns), (30, Some(10)));
    assert_eq!(looping.missed.get("abandoned"), Some(&20));
}

/// Notes the argument of each call, and compares the argument with the return value.
#[derive(Default)]
struct Depths {
    entered: AtomicU64,
    returned: AtomicU64,
    /// Calls with an odd argument are not followed.
    declines_odd: bool,
}

impl ReturnHandler for Depths {
    fn entry(&self, hit: &mut HitContext<'_>) -> EntryOutcome {
        self.entered.fetch_add(1, Ordering::Relaxed);
        let depth = hit.regs().rdi;
        if self.declines_odd && depth % 2 == 1 {
            return EntryOutcome::Decline;
        }
        EntryOutcome::Track(Box::new(depth))
    }

    fn ret(&self, hit: &mut HitContext<'_>, data: Box<dyn Any + Send>) {
        self.returned.fetch_add(1, Ordering::Relaxed);
        let depth = data.downcast::<u64>().expect("what the entry handler gave");
        assert_eq!(hit.regs().rax, *depth, "it returns its argument");
    }
}

fn depths(here: &Here<'_>, handler: &Arc<Depths>, maxactive: Option<usize>) -> Ran {
    let probe = ProbeConfig {
        action: EngineAction::HandleReturn(handler.clone()),
        maxactive,
        ..new("kretprobe:fn_recurse")
    };
    let ran = here.guest("run=recurse=20").with([probe]).run();
    ran.assert_good();
    assert_eq!(handler.entered.load(Ordering::Relaxed), 21);
    let returned = handler.returned.load(Ordering::Relaxed);
    assert_eq!(
        ran.probe("kretprobe:fn_recurse").returns,
        Some(returned),
        "each return is handled"
    );
    ran
}

fn private_data(here: &Here<'_>) {
    let ran = depths(here, &Arc::default(), None);
    assert_eq!(ran.probe("kretprobe:fn_recurse").returns, Some(21));
}

fn declined(here: &Here<'_>) {
    let handler = Depths {
        declines_odd: true,
        ..Depths::default()
    };
    let ran = depths(here, &Arc::new(handler), None);
    let probe = ran.probe("kretprobe:fn_recurse");
    assert_eq!(probe.returns, Some(11), "{probe:?}");
    assert_eq!(probe.missed.get("declined"), Some(&10), "{probe:?}");
}

fn maxactive(here: &Here<'_>) {
    let probe = ProbeConfig {
        maxactive: Some(5),
        ..new("kretprobe:fn_recurse")
    };
    let ran = here.guest("run=recurse=20,recurse=3").with([probe]).run();
    assert_followed(&ran);
    let probe = ran.probe("kretprobe:fn_recurse");
    assert_eq!((probe.hits, probe.returns), (25, Some(9)), "{probe:?}");
    assert_eq!(probe.missed.get("maxactive"), Some(&16), "{probe:?}");
}
