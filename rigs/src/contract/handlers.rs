//! A program's handlers around an instruction, and several probes at the same instruction.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use address::Gva;
use introspect::insn::Decoded;
use manifest::{Action, ProbeConfig};
use probes::{
    EngineAction, EntryOutcome, FaultOutcome, Handler, HitContext, Kernel, PreOutcome,
    ReturnHandler,
};
use text::InstructionFault;

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::{Ran, new};

pub(super) const CASES: [Case; 6] = [
    Case::new("handlers", Plants::Each, &[1], around_each_instruction),
    Case::new("handlers-smp", Plants::Chosen, &[2], |here| {
        around(here, "run=smp=20");
    }),
    Case::new("handler-fault", Plants::Each, &[1], |here| {
        let (ran, seen) = at_fault(here, "run=fault=7", FaultOutcome::ToGuest);
        ran.assert_good();
        // The guest executes each faulting instruction again, the second time without a fault.
        assert_eq!((seen.pre(), seen.post(), seen.faults()), (14, 7, 7));
    }),
    Case::new("handler-fault-swallowed", Plants::Each, &[1], |here| {
        let (ran, seen) = at_fault(here, "run=fault=1", FaultOutcome::Swallowed);
        assert_eq!((seen.pre(), seen.post(), seen.faults()), (1, 0, 1));
        // The guest misses the fault that the scenario provokes.
        let [said] = &ran.outcome.failures[..] else {
            panic!("one failure: {:?}", ran.outcome.failures);
        };
        assert!(said.starts_with("fault FAIL rip"), "{said}");
        ran.assert_accounted();
    }),
    Case::new("colocated", Plants::Each, &[1], colocated),
    Case::new("arguments", Plants::Each, &[1], arguments),
];

/// A probe with a handler.
pub(super) fn handled(spec: &str, handler: Arc<dyn Handler>) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: EngineAction::Handle(handler),
        ..new(spec)
    }
}

/// The instruction probed at the function's entry: the first instruction behind an `endbr64`.
pub(super) fn first_instruction(kernel: &Kernel, function: &str) -> Decoded {
    let symbol = kernel.symbols().lookup(function).expect(function);
    kernel
        .instructions(&symbol)
        .map(|decoded| decoded.expect("code"))
        .find(|decoded| decoded.text() != "endbr64")
        .expect("it has one")
}

/// Counts before, after and at faults.
pub(super) struct Counts {
    pre: AtomicU64,
    post: AtomicU64,
    faults: AtomicU64,
    at: Gva,
    /// The instruction's length.
    len: u64,
    at_fault: FaultOutcome,
}

impl Counts {
    pub(super) fn new(kernel: &Kernel, function: &str, at_fault: FaultOutcome) -> Arc<Self> {
        let first = first_instruction(kernel, function);
        Arc::new(Self {
            pre: AtomicU64::new(0),
            post: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            at: first.at(),
            len: first.len() as u64,
            at_fault,
        })
    }

    pub(super) fn pre(&self) -> u64 {
        self.pre.load(Ordering::Relaxed)
    }

    pub(super) fn post(&self) -> u64 {
        self.post.load(Ordering::Relaxed)
    }

    fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }
}

impl Handler for Counts {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        self.pre.fetch_add(1, Ordering::Relaxed);
        assert_eq!(hit.regs().rip, self.at.0, "it stands at the instruction");
        PreOutcome::Continue
    }

    fn post(&self, hit: &mut HitContext<'_>) {
        self.post.fetch_add(1, Ordering::Relaxed);
        assert_ne!(hit.regs().rip, self.at.0, "the instruction was executed");
    }

    fn fault(&self, hit: &mut HitContext<'_>, fault: InstructionFault) -> FaultOutcome {
        self.faults.fetch_add(1, Ordering::Relaxed);
        assert_eq!(fault.vector, 14);
        assert_eq!(fault.address.0, hit.regs().rdi, "it reads from there");
        if self.at_fault == FaultOutcome::Swallowed {
            let rip = self.at.wrapping_add(self.len).0;
            let regs = hit.regs_mut();
            (regs.rip, regs.rax) = (rip, 0xfeed_0000);
        }
        self.at_fault
    }
}

/// A probe with handlers at each function's first instruction: every kind of instruction in the test guest.
fn around_each_instruction(here: &Here<'_>) {
    around(here, "run=calls=10,recurse=9,flags,selfpatch,ring3=2");
}

fn around(here: &Here<'_>, cmdline: &str) {
    let kernel = here.kernel();
    let functions: Vec<(String, Arc<Counts>)> = kernel
        .symbols()
        .matching("fn_*")
        .filter(|symbol| symbol.is_text() && symbol.size > 0)
        .map(|symbol| {
            let counts = Counts::new(&kernel, &symbol.name, FaultOutcome::ToGuest);
            (symbol.name.to_string(), counts)
        })
        .collect();
    let probes = functions
        .iter()
        .map(|(name, counts)| handled(&format!("kprobe:{name}"), counts.clone()));
    let ran = here.guest(cmdline).with(probes).run();
    ran.assert_good();
    let mut called = 0;
    for (name, counts) in &functions {
        let expected = ran.counted(name);
        let seen = (counts.pre(), counts.post(), ran.hits(name));
        assert_eq!(seen, (expected, expected, expected), "{name}");
        called += u64::from(expected > 0);
    }
    assert!(called >= 35, "{called} functions");
}

fn at_fault(here: &Here<'_>, cmdline: &str, outcome: FaultOutcome) -> (Ran, Arc<Counts>) {
    let counts = Counts::new(&here.kernel(), "fn_fault", outcome);
    let probe = handled("kprobe:fn_fault", counts.clone());
    (here.guest(cmdline).with([probe]).run(), counts)
}

/// The calls of handlers, in order.
type Calls = Arc<Mutex<Vec<String>>>;

fn called(calls: &Calls, what: String) {
    calls
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(what);
}

/// Notes each call of the handler.
struct Scribe(&'static str, Calls);

impl Handler for Scribe {
    fn pre(&self, _: &mut HitContext<'_>) -> PreOutcome {
        called(&self.1, format!("{} before", self.0));
        PreOutcome::Continue
    }

    fn post(&self, _: &mut HitContext<'_>) {
        called(&self.1, format!("{} after", self.0));
    }
}

impl ReturnHandler for Scribe {
    fn entry(&self, _: &mut HitContext<'_>) -> EntryOutcome {
        called(&self.1, format!("{} entered", self.0));
        EntryOutcome::Track(Box::new(()))
    }

    fn ret(&self, _: &mut HitContext<'_>, _: Box<dyn std::any::Any + Send>) {
        called(&self.1, format!("{} returned", self.0));
    }
}

/// Probes of every kind at the same instruction, some from the beginning and some registered later: each is hit, in the order of
/// registration.
fn colocated(here: &Here<'_>) {
    let calls = Calls::default();
    let scribe = |name| Arc::new(Scribe(name, calls.clone()));
    let at_return = |name| ProbeConfig {
        action: EngineAction::HandleReturn(scribe(name)),
        ..new("kretprobe:fn_push")
    };
    let counting = ProbeConfig {
        action: Action::Count.into(),
        ..new("kprobe:fn_push+0")
    };
    let guest = here
        .guest("run=calls=10")
        .with([
            handled("kprobe:fn_push", scribe("a")),
            at_return("b"),
            new("kprobe:fn_push"),
            handled("kprobe:fn_push", scribe("c")),
        ])
        .prepare();
    let later = [
        counting,
        at_return("d"),
        handled("kprobe:fn_push", scribe("e")),
    ];
    let ids = guest.register(&later);
    assert_eq!(ids.len(), 3);
    let ran = guest.run();
    ran.assert_good();
    assert_eq!(ran.summary.probes.len(), 7);
    for probe in &ran.summary.probes {
        assert_eq!(probe.hits, 10, "{probe:?}");
        assert!(probe.returns.is_none_or(|returns| returns == 10));
    }
    assert_eq!(ran.observer.hits().len(), 10);
    let calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    let each = [
        "a before",
        "b entered",
        "c before",
        "d entered",
        "e before",
        "a after",
        "c after",
        "e after",
    ];
    for call in calls.chunks(each.len() + 2) {
        assert_eq!(call[..each.len()], each);
        let mut returned = call[each.len()..].to_vec();
        returned.sort();
        assert_eq!(returned, ["b returned", "d returned"]);
    }
    assert_eq!(calls.len(), 10 * (each.len() + 2));
}

/// The content of a hit: the registers at the instruction, and the arguments by the calling convention.
fn arguments(here: &Here<'_>) {
    let ran = here
        .guest("run=recurse=3")
        .probes(["kprobe:fn_recurse", "kprobe:fn_recurse+0x4"])
        .run();
    ran.assert_good();
    let hits = ran.observer.hits();
    let at = |symbol: &str| -> Vec<_> {
        let at = hits.iter().filter(|hit| &*hit.symbol == symbol);
        at.cloned().collect()
    };
    let (entries, inside) = (at("fn_recurse+0x0"), at("fn_recurse+0x4"));
    assert_eq!((entries.len(), inside.len()), (4, 4));
    for ((entry, inside), depth) in entries.iter().zip(&inside).zip([3, 2, 1, 0]) {
        assert_eq!((entry.args[0].0, entry.regs.rdi.0), (depth, depth));
        assert_eq!(inside.args, entry.args);
        // Two instructions have pushed RBP and copied the stack pointer in between.
        assert_eq!(inside.regs.rbp, inside.regs.rsp);
        assert_eq!(inside.regs.rsp.0, entry.regs.rsp.0 - 8);
        assert_eq!(inside.regs.rip, inside.ip);
    }
    assert!(hits.is_sorted_by_key(|hit| hit.ts_ns));
    // Deeper is lower.
    assert!(entries.is_sorted_by_key(|hit| std::cmp::Reverse(hit.regs.rsp.0)));
}
