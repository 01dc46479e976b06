//! Execution in place by the hardware: the bytes in memory while the vCPU runs alone, and the recognition of the instruction's result.

use std::sync::{Arc, Mutex};

use address::Gva;
use events::Tier;
use manifest::{ProbeConfig, ProbeSpec};
use text::testing::{FakeVcpu, Injected};
use text::{GuestError, InstructionFault, PlantByte, Ran, To, Vcpu as _};

use super::{ABILITIES, DATA, RDTSC, Rig, STACK, gpa, one, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::{SyntheticKernel, TEXT, TEXT_GPA};
use crate::{Abilities, EngineAction, FaultOutcome, Handler, HitContext};

const PORT: u8 = PlantByte::Port.value();
/// The address of the interrupt table.
const IDT: u64 = DATA;
/// `ud2; ret`
const UD2: [u8; 3] = [0x0f, 0x0b, 0xc3];
/// `movaps xmm0, [rdi]; ret`
const LOAD: [u8; 4] = [0x0f, 0x28, 0x07, 0xc3];
const INVALID_OPCODE: u8 = 6;
const PAGE_FAULT: u8 = 14;
const INTERRUPT: u8 = 0x30;

fn function(code: &[u8], name: &str) -> (SyntheticKernel, Gva, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function(name, code);
    let handlers = kernel.function("handlers", &[0x90; 256]);
    (kernel, at, handlers)
}

/// The handler of each vector is one byte.
fn handler_of(handlers: Gva, vector: u8) -> Gva {
    handlers.wrapping_add(vector.into())
}

fn write_gates(rig: &Rig, handlers: Gva) {
    for vector in 0..=u8::MAX {
        let target = handler_of(handlers, vector).0;
        let low = (target & 0xffff) | 0x8e00_0010_0000 | ((target >> 16 & 0xffff) << 48);
        let at = IDT + 16 * u64::from(vector);
        rig.memory.put(at, &low.to_le_bytes());
        rig.memory.put(at + 8, &(target >> 32).to_le_bytes());
    }
}

fn with_idt(mut vcpu: FakeVcpu) -> FakeVcpu {
    (vcpu.sregs.idt.base, vcpu.sregs.idt.limit) = (IDT, 0xfff);
    vcpu
}

/// The processor goes through a gate: its frame is on the stack.
fn raise(rig: &Rig, vcpu: &mut FakeVcpu, at: Gva, error_code: Option<u32>, returns_to: Gva) {
    let pushed = [
        returns_to.0,
        0x10,
        vcpu.regs.rflags | 1 << 16,
        vcpu.regs.rsp,
        0x18,
    ];
    vcpu.regs.rsp &= !15;
    for value in pushed.into_iter().rev().chain(error_code.map(u64::from)) {
        vcpu.regs.rsp -= 8;
        rig.memory.put(vcpu.regs.rsp, &value.to_le_bytes());
    }
    vcpu.regs.rip = at.0;
}

#[test]
fn the_guests_own_byte_shows_and_a_stop_behind_it() {
    let (kernel, at) = one("probed", &RDTSC);
    let rig = Rig::new(&kernel, &["kprobe:probed"]);
    let behind = at.wrapping_add(2);
    let mut vcpu = vcpu(at.wrapping_add(1));
    assert_eq!(
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled"),
        HitOutcome::NeedsPause
    );
    let mut runs = 0;
    let outcome = rig
        .engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, at, |vcpu, to| {
            let stops = to.stops();
            runs += 1;
            assert_eq!(vcpu.regs.rip, at.0);
            assert_eq!(
                [at, at.wrapping_add(1), behind].map(|at| rig.seen(at)),
                [RDTSC[0], RDTSC[1], PORT]
            );
            assert_eq!(stops, [behind]);
            vcpu.regs.rip = behind.0;
            Ok(Ran::At(behind))
        });
    assert_eq!((outcome.expect("handled"), runs), (HitOutcome::Resume, 1));
    assert_eq!([at, behind].map(|at| rig.seen(at)), [PORT, RDTSC[2]]);
    assert_eq!(vcpu.regs.rip, behind.0);
    let probe = rig.probe(0);
    assert_eq!(
        (probe.hits, probe.exits, probe.tier),
        (1, 2, Some(Tier::Stepped))
    );
}

/// If the vCPU reaches no stop in time, the instruction counts as not executed.
#[test]
fn memory_is_as_before_however_the_run_ends() {
    let (kernel, at) = one("probed", &RDTSC);
    for ran in [
        Ok(Ran::Nowhere),
        Ok(Ran::Ended),
        Err(GuestError::Injected(0)),
    ] {
        let rig = Rig::new(&kernel, &["kprobe:probed"]);
        let before = rig.memory.bytes();
        let failed = ran.is_err();
        let outcome = rig.engine.paused_hits.on_paused_hit(
            &mut vcpu(at),
            &rig.paused,
            at,
            |_, _| match ran {
                Ok(ran) => Ok(ran),
                Err(_) => Err(GuestError::Injected(0)),
            },
        );
        assert_eq!(outcome.is_err(), failed);
        assert!(rig.memory.bytes() == before);
        assert_eq!((rig.probe(0).tier, rig.probe(0).exits), (None, 0));
    }
}

#[test]
fn every_exceptions_handler_is_a_stop() {
    let (kernel, at, handlers) = function(&RDTSC, "probed");
    for holds_interrupts in [true, false] {
        let abilities = Abilities {
            holds_interrupts,
            ..ABILITIES
        };
        let rig = Rig::with(&kernel, &["kprobe:probed"], abilities);
        write_gates(&rig, handlers);
        // The probed instruction itself is one handler; another handler is not in memory.
        let mut vcpu = with_idt(vcpu(at));
        let hostile = |vector: u64, target: u64| {
            let low = (target & 0xffff) | 0x8e00_0010_0000 | ((target >> 16 & 0xffff) << 48);
            rig.memory.put(IDT + 16 * vector, &low.to_le_bytes());
            rig.memory
                .put(IDT + 16 * vector + 8, &(target >> 32).to_le_bytes());
        };
        hostile(0, at.0 + 1);
        hostile(5, 0x1000_0000);
        let before = rig.memory.bytes();
        rig.engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| {
                let shown = |vector| rig.seen(handler_of(handlers, vector)) == PORT;
                for vector in [1, 3, 6, 13, PAGE_FAULT, 29] {
                    assert!(shown(vector), "{vector}");
                }
                assert!(!shown(0) && !shown(5) && !shown(9) && !shown(31));
                for vector in [2, 32, 255] {
                    assert_eq!(shown(vector), !holds_interrupts, "{vector}");
                }
                assert_eq!(rig.seen(at.wrapping_add(1)), RDTSC[1]);
                Ok(Ran::Nowhere)
            })
            .expect("handled");
        assert!(rig.memory.bytes() == before);
    }
}

/// The faults received by a handler, and the handler's answers.
#[derive(Debug, Default)]
struct Faults {
    told: Mutex<Vec<(InstructionFault, vmm::kvm_regs)>>,
    posts: Mutex<usize>,
    swallows: bool,
    sets_rax: Option<u64>,
}

impl Handler for Faults {
    fn post(&self, _hit: &mut HitContext<'_>) {
        *self.posts.lock().expect("lock") += 1;
    }

    fn fault(&self, hit: &mut HitContext<'_>, fault: InstructionFault) -> FaultOutcome {
        self.told.lock().expect("lock").push((fault, *hit.regs()));
        if let Some(rax) = self.sets_rax {
            hit.regs_mut().rax = rax;
        }
        if self.swallows {
            hit.regs_mut().rip += 3;
            return FaultOutcome::Swallowed;
        }
        FaultOutcome::ToGuest
    }
}

/// An SSE load faults at its memory operand. Returns the vCPU, the registers at the start of the guest's handler, the faults and the
/// probe's address.
fn load_faults(faults: Faults) -> (FakeVcpu, vmm::kvm_regs, Arc<Faults>, Gva) {
    let (kernel, at, handlers) = function(&LOAD, "probed");
    let rig = Rig::new(&kernel, &[]);
    write_gates(&rig, handlers);
    let faults = Arc::new(faults);
    let handler = Arc::clone(&faults) as Arc<dyn Handler>;
    rig.engine
        .register(
            &rig.paused,
            &[
                ProbeConfig::from("kprobe:probed".parse::<ProbeSpec>().expect("a probe"))
                    .with_action(EngineAction::Handle(handler)),
            ],
        )
        .expect("registered");
    let mut vcpu = with_idt(vcpu(at));
    vcpu.sregs.cr2 = 0x77;
    vcpu.regs.rsp = STACK - 4;
    let target = handler_of(handlers, PAGE_FAULT);
    let mut delivered = vcpu.regs;
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, at, |vcpu, to| {
            let stops = to.stops();
            assert!(stops.contains(&target));
            raise(&rig, vcpu, target, Some(2), at);
            vcpu.sregs.cr2 = 0x1234;
            delivered = vcpu.regs;
            Ok(Ran::At(target))
        })
        .expect("handled");
    (vcpu, delivered, faults, at)
}

#[test]
fn fault_reaches_the_handler_and_the_guest_unchanged() {
    let (vcpu, delivered, faults, at) = load_faults(Faults::default());
    let told = faults.told.lock().expect("lock");
    let (fault, regs) = told[0];
    assert_eq!(
        fault,
        InstructionFault {
            vector: PAGE_FAULT,
            error_code: 2,
            address: Gva(0x1234)
        }
    );
    assert_eq!(
        (regs.rip, regs.rsp, regs.rflags),
        (at.0, STACK - 4, 2),
        "the registers are those before the fault"
    );
    assert_eq!((told.len(), *faults.posts.lock().expect("lock")), (1, 0));
    assert_eq!((vcpu.regs, vcpu.sregs.cr2), (delivered, 0x1234));
    assert_eq!(vcpu.injected, []);
}

#[test]
fn a_fault_may_be_swallowed() {
    let (vcpu, _, _, at) = load_faults(Faults {
        swallows: true,
        ..Faults::default()
    });
    assert_eq!((vcpu.regs.rip, vcpu.regs.rsp), (at.0 + 3, STACK - 4));
    assert_eq!((vcpu.sregs.cr2, vcpu.injected), (0x77, vec![]));
}

#[test]
fn a_fault_with_changed_registers_is_given_anew() {
    let (vcpu, _, _, at) = load_faults(Faults {
        sets_rax: Some(5),
        ..Faults::default()
    });
    assert_eq!(
        (vcpu.regs.rip, vcpu.regs.rsp, vcpu.regs.rax),
        (at.0, STACK - 4, 5)
    );
    assert_eq!(
        vcpu.injected,
        [Injected::PageFault {
            address: Gva(0x1234),
            error_code: 2
        }]
    );
}

#[test]
fn a_software_interrupt_is_done_in_its_handler() {
    // int 0x30; ret
    let (kernel, at, handlers) = function(&[0xcd, INTERRUPT, 0xc3], "probed");
    let rig = Rig::new(&kernel, &["kprobe:probed"]);
    write_gates(&rig, handlers);
    let target = handler_of(handlers, INTERRUPT);
    let mut vcpu = with_idt(vcpu(at));
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, at, |vcpu, to| {
            let stops = to.stops();
            assert_eq!((stops[0], rig.seen(target)), (target, PORT));
            raise(&rig, vcpu, target, None, at.wrapping_add(2));
            Ok(Ran::At(target))
        })
        .expect("handled");
    assert_eq!((rig.seen(target), vcpu.regs.rip), (0x90, target.0));
    assert_eq!(rig.probe(0).tier, Some(Tier::Stepped));
}

/// An interrupt that could not be held back came first: the instruction has not been executed, and hits again.
#[test]
fn an_interrupt_is_no_fault_of_the_instruction() {
    let (kernel, at, handlers) = function(&RDTSC, "probed");
    let abilities = Abilities {
        holds_interrupts: false,
        ..ABILITIES
    };
    let rig = Rig::with(&kernel, &["kprobe:probed"], abilities);
    write_gates(&rig, handlers);
    let target = handler_of(handlers, INTERRUPT);
    let mut vcpu = with_idt(vcpu(at));
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, at, |vcpu, _| {
            raise(&rig, vcpu, target, None, at);
            Ok(Ran::At(target))
        })
        .expect("handled");
    assert_eq!((vcpu.regs.rip, rig.probe(0).tier), (target.0, None));
}

/// The guest's #UD handler reads the instruction to find the cause.
#[test]
fn an_instruction_made_to_fault_shows_itself_to_the_handler() {
    let (kernel, at, handlers) = function(&UD2, "warns");
    let rig = Rig::new(&kernel, &["kprobe:warns"]);
    write_gates(&rig, handlers);
    let target = handler_of(handlers, INVALID_OPCODE);
    assert_eq!(rig.seen(at), PORT);
    for round in 1..=3 {
        let mut vcpu = with_idt(vcpu(at));
        let run = |vcpu: &mut FakeVcpu, to: To<'_>| {
            let stops = to.stops();
            assert!(stops.contains(&target));
            assert_eq!(rig.seen(at), UD2[0]);
            raise(&rig, vcpu, target, None, at);
            Ok(Ran::At(target))
        };
        if round > 1 {
            let outcome = rig
                .engine
                .hits
                .on_debug_hit(&mut vcpu, 1, at)
                .expect("handled");
            assert_eq!(outcome, HitOutcome::NeedsPause);
            rig.engine
                .paused_hits
                .on_paused_debug_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("it is hit next"))
                .expect("handled");
        }
        let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
        assert_eq!(outcome, HitOutcome::NeedsPause);
        rig.engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &rig.paused, at, run)
            .expect("handled");
        assert_eq!(vcpu.regs.rip, target.0);
        assert_eq!(rig.seen(at), UD2[0], "the guest reads what it has executed");
        assert_eq!(rig.paused.breakpoints(), [Some(at), None, None, None]);
        assert_eq!(rig.probe(0).hits, round);
    }
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert_eq!(rig.paused.breakpoints(), [None; 4]);
}

#[test]
fn without_a_debug_register_the_guest_is_unharmed_and_the_miss_is_noted() {
    let mut kernel = SyntheticKernel::new();
    let places: Vec<Gva> = (0..6)
        .map(|i| kernel.function(&format!("warns{i}"), &UD2))
        .collect();
    let rig = Rig::new(&kernel, &["kprobe:warns*"]);
    for &at in &places[..5] {
        rig.engine
            .paused_hits
            .on_paused_hit(&mut vcpu(at), &rig.paused, at, |_, _| Ok(Ran::Nowhere))
            .expect("handled");
    }
    let seen: Vec<u8> = places.iter().map(|at| rig.seen(*at)).collect();
    assert_eq!(seen, [UD2[0], UD2[0], UD2[0], UD2[0], UD2[0], PORT]);
    assert_eq!(rig.notes().len(), 1);
    assert_eq!(rig.probe(4).missed.get("unwatched"), Some(&1));
    // The first site is executed again, and its debug register goes to the waiting site.
    let first = places[0];
    rig.engine
        .paused_hits
        .on_paused_debug_hit(&mut vcpu(first), &rig.paused, first, |_, _| {
            panic!("it is hit next")
        })
        .expect("handled");
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu(first), &rig.paused, first, |_, _| {
            Ok(Ran::Nowhere)
        })
        .expect("handled");
    assert!(rig.paused.breakpoints().contains(&Some(places[4])));
    assert!(!rig.paused.breakpoints().contains(&Some(first)));
    assert_eq!(rig.probe(0).missed.get("unwatched"), Some(&1));
    assert_eq!(rig.seen(first), UD2[0]);
}

/// `syscall` in ring 0 jumps to the address in MSR_LSTAR.
#[test]
fn a_system_call_stops_at_its_entry() {
    let (kernel, at, entry) = function(&[0x0f, 0x05, 0xc3], "calls");
    let rig = Rig::new(&kernel, &["kprobe:calls"]);
    let mut vcpu = vcpu(at);
    vcpu.msrs.insert(0xc000_0082, entry.0);
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, at, |vcpu, to| {
            let stops = to.stops();
            assert_eq!((stops, rig.seen(entry)), (&[entry][..], PORT));
            vcpu.regs.rip = entry.0;
            Ok(Ran::At(entry))
        })
        .expect("handled");
    assert_eq!(
        (rig.seen(entry), rig.probe(0).tier),
        (0x90, Some(Tier::Stepped))
    );
}

/// The processor fetches the next instruction through the page tables loaded by `mov cr3`.
#[test]
fn stops_follow_the_tables_that_an_instruction_loads() {
    // mov cr3, rdi; ret
    let (kernel, at) = one("switches", &[0x0f, 0x22, 0xdf, 0xc3]);
    let rig = Rig::new(&kernel, &["kprobe:switches"]);
    // The same tables at another address, except for the page of the text, which is a copy.
    let memory = rig.memory.bytes();
    rig.memory.put(0x8_0000, &memory[0x1000..0x7000]);
    let copy = 0x9_0000;
    let text = usize::try_from(TEXT_GPA).expect("small");
    rig.memory.put(copy, &memory[text..text + 0x1000]);
    let relocated = |at: u64| (at + 0x7_f000) | 0x23;
    rig.memory
        .put(0x8_0000 + 8 * 511, &relocated(0x2000).to_le_bytes());
    rig.memory
        .put(0x8_1000 + 8 * 510, &relocated(0x3000).to_le_bytes());
    rig.memory
        .put(0x8_2000 + 8 * 8, &relocated(0x4000).to_le_bytes());
    rig.memory.put(0x8_3000, &(copy | 0x61).to_le_bytes());
    let mut vcpu = vcpu(at);
    vcpu.regs.rdi = 0x8_0000;
    let before = rig.memory.bytes();
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, at, |vcpu, _| {
            let behind = gpa(at) + 3;
            let stops = [behind, behind - TEXT_GPA + copy].map(|gpa| rig.byte(gpa));
            assert_eq!(stops, [PORT; 2]);
            assert_eq!(vcpu.sregs()?.cr3 & !0xfff, 0x1000);
            Ok(Ran::Nowhere)
        })
        .expect("handled");
    assert!(rig.memory.bytes() == before);
    assert!(at.0 >= TEXT.0);
}
