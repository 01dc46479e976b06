//! Handlers that change the guest: the next instruction, the registers, the memory, the return value of a function.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use address::Gva;
use manifest::ProbeConfig;
use probes::{
    EngineAction, EntryOutcome, FaultOutcome, Handler, HitContext, PreOutcome, ReturnHandler,
};

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::new;
use super::handlers::{Counts, first_instruction, handled};

pub(super) const CASES: [Case; 5] = [
    Case::new("change-path", Plants::Each, &[1], change_path),
    Case::new("force-return", Plants::Each, &[1], force_return),
    Case::new("set-registers", Plants::Each, &[1], set_registers),
    Case::new("set-memory", Plants::Each, &[1], set_memory),
    Case::new("set-return-value", Plants::Each, &[1], set_return_value),
];

/// Goes on behind the instruction, which is not executed.
struct Over {
    len: u64,
    post: AtomicU64,
}

impl Handler for Over {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        hit.regs_mut().rip += self.len;
        PreOutcome::Resume
    }

    fn post(&self, _: &mut HitContext<'_>) {
        self.post.fetch_add(1, Ordering::Relaxed);
    }
}

/// A pre-handler skips a call. Neither the probe's post-handler nor the handlers of a probe registered later are called.
fn change_path(here: &Here<'_>) {
    let kernel = here.kernel();
    let first = first_instruction(&kernel, "fn_call");
    let over = Arc::new(Over {
        len: first.len() as u64,
        post: AtomicU64::new(0),
    });
    let later = Counts::new(&kernel, "fn_call", FaultOutcome::ToGuest);
    let probes = [
        handled("kprobe:fn_call", over.clone()),
        handled("kprobe:fn_call", later.clone()),
        new("kprobe:fn_callee"),
    ];
    let ran = here.guest("run=calls=10").with(probes).run();
    // The guest notices the missing call in the first round.
    assert_eq!(ran.outcome.failures.len(), 1, "{:?}", ran.outcome.failures);
    assert!(ran.outcome.ended);
    assert_eq!(ran.hits("fn_call"), ran.counted("fn_call"));
    // fn_call_mem makes the other.
    assert_eq!(ran.hits("fn_callee"), ran.hits("fn_call"));
    assert_eq!(over.post.load(Ordering::Relaxed), 0, "it was not executed");
    assert_eq!((later.pre(), later.post()), (0, 0));
    ran.assert_accounted();
}

const FORCED: u64 = 0x5eed;

/// Returns from the function at once, with a forced value.
struct Leave;

impl Handler for Leave {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        hit.return_now(FORCED)
            .expect("the return address is on the stack");
        PreOutcome::Resume
    }
}

/// Counts returns and forced values, and adds `add` to the returned value.
#[derive(Default)]
struct SeesReturns {
    returns: AtomicU64,
    forced: AtomicU64,
    add: u64,
}

impl ReturnHandler for SeesReturns {
    fn entry(&self, hit: &mut HitContext<'_>) -> EntryOutcome {
        EntryOutcome::Track(Box::new(hit.regs().rdi))
    }

    fn ret(&self, hit: &mut HitContext<'_>, _: Box<dyn Any + Send>) {
        self.returns.fetch_add(1, Ordering::Relaxed);
        let forced = u64::from(hit.regs().rax == FORCED);
        self.forced.fetch_add(forced, Ordering::Relaxed);
        if self.add != 0 {
            hit.regs_mut().rax += self.add;
        }
    }
}

fn at_return(spec: &str, handler: &Arc<SeesReturns>) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: EngineAction::HandleReturn(handler.clone()),
        ..new(spec)
    }
}

fn force_return(here: &Here<'_>) {
    let seen = Arc::new(SeesReturns::default());
    let probes = [
        at_return("kretprobe:fn_mov_imm", &seen),
        handled("kprobe:fn_mov_imm", Arc::new(Leave)),
    ];
    let ran = here.guest("run=calls=7").with(probes).run();
    // The guest notices that the function did no work, as intended.
    assert!(!ran.outcome.is_good());
    let hits = ran.hits("fn_mov_imm");
    assert!(hits > 0);
    assert_eq!(ran.counted("fn_mov_imm"), 0, "it never ran");
    let told = (
        seen.returns.load(Ordering::Relaxed),
        seen.forced.load(Ordering::Relaxed),
    );
    assert_eq!(told, (hits, hits));
    ran.assert_accounted();
}

/// Makes a recursion end early.
struct Shallow {
    at: u64,
}

impl Handler for Shallow {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        if hit.regs().rdi == self.at {
            hit.regs_mut().rdi = 0;
        }
        PreOutcome::Continue
    }
}

fn set_registers(here: &Here<'_>) {
    let probe = handled("kprobe:fn_recurse", Arc::new(Shallow { at: 5 }));
    let ran = here.guest("run=recurse=9").with([probe]).run();
    assert_eq!(ran.counted("fn_recurse"), 5, "9, 8, 7, 6, and 5 made 0");
    assert_eq!(ran.hits("fn_recurse"), 5);
    let [said] = &ran.outcome.failures[..] else {
        panic!("one failure: {:?}", ran.outcome.failures);
    };
    assert!(said.starts_with("recurse FAIL depth"), "{said}");
}

/// Writes the variable that the instruction is about to read, and checks the value read.
struct Writes {
    at: Gva,
    value: AtomicU64,
    seen: AtomicU64,
}

impl Handler for Writes {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        let value = self.value.fetch_add(0x1111, Ordering::Relaxed) + 0x1111;
        hit.write(self.at, &value.to_le_bytes()).expect("written");
        assert_eq!(hit.read_u64(self.at).expect("read"), value);
        PreOutcome::Continue
    }

    fn post(&self, hit: &mut HitContext<'_>) {
        let value = self.value.load(Ordering::Relaxed);
        assert_eq!(hit.regs().rax, value, "it has loaded what was written");
        self.seen.fetch_add(1, Ordering::Relaxed);
    }
}

fn set_memory(here: &Here<'_>) {
    let kernel = here.kernel();
    let variable = kernel.symbols().lookup("fn_memory").expect("fn_memory");
    let writes = Arc::new(Writes {
        at: variable.address,
        value: AtomicU64::new(0),
        seen: AtomicU64::new(0),
    });
    let probe = handled("kprobe:fn_mov_load", writes.clone());
    let ran = here.guest("run=calls=10").with([probe]).run();
    // The guest's model of the function reads the same variable.
    ran.assert_good();
    assert_eq!(writes.seen.load(Ordering::Relaxed), 10);
}

fn set_return_value(here: &Here<'_>) {
    let seen = Arc::new(SeesReturns {
        add: 100,
        ..SeesReturns::default()
    });
    let probe = at_return("kretprobe:fn_recurse", &seen);
    let ran = here.guest("run=recurse=0").with([probe]).run();
    assert_eq!(seen.returns.load(Ordering::Relaxed), 1);
    let [said] = &ran.outcome.failures[..] else {
        panic!("one failure: {:?}", ran.outcome.failures);
    };
    assert!(said.starts_with("recurse FAIL depth=0x64 "), "{said}");
}
