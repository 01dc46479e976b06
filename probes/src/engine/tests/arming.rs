//! When probes are armed and disarmed.

use address::{Gpa, Gva};
use events::{Frame, Hex, ProbeState};
use manifest::{ProbeConfig, ProbeSpec};
use text::{PlantByte, Written};

use super::{
    ABILITIES, Abilities, DATA, MEMORY_BYTES, PLAIN, Rig, TEXT_ENTRY, gpa, memory_of, one,
    skipping, vcpu,
};
use crate::engine::RegisterError;
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::{SyntheticKernel, TEXT, TEXT_GPA};

const PORT: u8 = PlantByte::Port.value();
const JUMP: [u8; 5] = [0xe9, 0, 0x10, 0, 0];

/// A vCPU executes the function of a kernel event.
fn reach(rig: &Rig, at: Gva) {
    let mut vcpu = vcpu(at);
    assert_eq!(
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled"),
        HitOutcome::NeedsPause
    );
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("nothing to run"))
        .expect("handled");
    assert_eq!(vcpu.regs.rip, at.0 + 1, "and goes on");
}

#[test]
fn arming_is_all_or_nothing() {
    let mut kernel = SyntheticKernel::new();
    kernel.function("first", &PLAIN);
    kernel.function("second", &PLAIN);
    let memory = memory_of(&kernel, TEXT_GPA, TEXT_ENTRY);
    let before = memory.bytes();
    let rig = Rig::unarmed(
        memory,
        &kernel,
        &["kprobe:first", "kprobe:second"],
        ABILITIES,
    );
    for n in 1..=3 {
        rig.paused.requests.fail(n);
        let error = rig
            .engine
            .arm_loaded(&rig.paused)
            .expect_err("a request fails");
        let cause = std::error::Error::source(&error).expect("a cause");
        assert!(cause.to_string().contains("cannot plant at"), "{cause}");
        assert!(rig.memory.bytes() == before, "request {n}");
        assert_eq!(rig.states(), [ProbeState::Pending; 2]);
    }
    rig.paused.requests.fail(0);
    rig.engine.arm_loaded(&rig.paused).expect("nothing fails");
    assert_eq!(rig.states(), [ProbeState::Armed; 2]);
}

#[test]
fn disarming_leaves_the_guest_as_it_was() {
    let mut kernel = SyntheticKernel::new();
    let plain = kernel.function("plain", &PLAIN);
    let keyed = kernel.function("keyed", &JUMP);
    kernel.jump_labels(&[keyed]);
    let before = memory_of(&kernel, TEXT_GPA, TEXT_ENTRY).bytes();
    let rig = Rig::new(
        &kernel,
        &["kprobe:plain", "kprobe:plain+0x1", "kprobe:keyed"],
    );
    assert_eq!(rig.paused.breakpoints(), [Some(keyed), None, None, None]);
    assert_eq!((rig.seen(plain), rig.seen(keyed)), (PORT, JUMP[0]));

    rig.paused.requests.fail(2);
    let armed = rig.memory.bytes();
    rig.engine
        .disarm_all(&rig.paused)
        .expect_err("a byte cannot be put back");
    assert!(rig.memory.bytes() == armed);
    assert_eq!(rig.states(), [ProbeState::Armed; 3]);

    rig.paused.requests.fail(0);
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert!(rig.memory.bytes() == before);
    assert_eq!(rig.states(), [ProbeState::Disabled; 3]);
    assert_eq!(
        (rig.paused.read_only(), rig.paused.breakpoints()),
        (vec![], [None; 4])
    );
    assert_eq!(
        rig.engine
            .hits
            .on_hit(&mut vcpu(plain), plain)
            .expect("handled"),
        HitOutcome::NotOurs
    );
}

#[test]
fn debug_registers_are_four() {
    let mut kernel = SyntheticKernel::new();
    let names: Vec<String> = (0..5).map(|i| format!("keyed{i}")).collect();
    let places: Vec<Gva> = names
        .iter()
        .map(|name| kernel.function(name, &JUMP))
        .collect();
    kernel.jump_labels(&places);
    let rig = Rig::new(&kernel, &["kprobe:keyed*"]);
    assert_eq!(
        rig.paused.breakpoints(),
        [0, 1, 2, 3].map(|i| Some(places[i]))
    );
    assert_eq!(rig.states()[..4], [ProbeState::Armed; 4]);
    let refused = rig.probe(4);
    assert_eq!(refused.state, ProbeState::Refused);
    assert!(
        refused
            .reason
            .is_some_and(|reason| reason.contains("debug registers are taken"))
    );
    assert_eq!(rig.notes()[0].probe.as_deref(), Some("kprobe:keyed4"));

    let mut vcpu = vcpu(places[2]);
    let outcome = rig.engine.hits.on_debug_hit(&mut vcpu, 1 << 2, places[2]);
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    assert_eq!(vcpu.regs.rip, places[2].0 + 5 + 0x1000);
    assert_eq!((rig.probe(2).hits, rig.hits().len()), (1, 1));
    // A debug register of another site, and a debug register not used by hyprobe.
    for fired in [1 << 1, 0] {
        let outcome = rig.engine.hits.on_debug_hit(&mut vcpu, fired, places[2]);
        assert_eq!(outcome.expect("handled"), HitOutcome::NotOurs);
    }
}

#[test]
fn debug_registers_that_do_not_work_are_not_used() {
    let (mut kernel, at) = one("keyed", &JUMP);
    kernel.jump_labels(&[at]);
    let abilities = Abilities {
        debug_execute: false,
        ..ABILITIES
    };
    let rig = Rig::with(&kernel, &["kprobe:keyed"], abilities);
    assert_eq!(rig.states(), [ProbeState::Refused]);
    assert_eq!(rig.paused.breakpoints(), [None; 4]);
}

#[test]
fn site_patched_at_boot_is_armed_after_the_patching() {
    let mut kernel = SyntheticKernel::new();
    let rest_init = kernel.function("rest_init", &PLAIN);
    let patched = kernel.function("patched", &JUMP);
    let shifted = kernel.function("shifted", &[&[0x90], &JUMP[..]].concat());
    kernel.return_sites(&[patched, shifted.wrapping_add(1)]);
    let rig = Rig::new(&kernel, &["kprobe:patched", "kprobe:shifted+0x1"]);
    assert_eq!(rig.states(), [ProbeState::Pending; 2]);
    assert!(
        rig.probe(0)
            .reason
            .is_some_and(|reason| reason.contains("while it boots"))
    );
    assert_eq!(rig.seen(patched), JUMP[0]);
    // The kernel makes a return of one jump, and swallows the beginning of the other.
    for (at, bytes) in [
        (patched, &[0xc3, 0xcc, 0xcc, 0xcc, 0xcc][..]),
        (shifted, &[0x66, 0x90]),
    ] {
        let written = rig.engine.writes.on_guest_write(Gpa(gpa(at)), bytes);
        assert_eq!(written.expect("merged"), Written::Merged);
    }
    reach(&rig, rest_init);
    assert_eq!(rig.states(), [ProbeState::Armed, ProbeState::Refused]);
    assert!(
        rig.probe(1)
            .reason
            .is_some_and(|reason| reason.contains("no instruction begins there"))
    );
    assert_eq!(
        (rig.seen(patched), rig.probe(0).ip),
        (PORT, Some(Hex(patched.0)))
    );
    // The displaced instruction is the instruction patched by the kernel.
    let mut vcpu = vcpu(patched);
    vcpu.regs.rsp = DATA;
    rig.memory.put(DATA, &0x1234_u64.to_le_bytes());
    rig.engine.hits.on_hit(&mut vcpu, patched).expect("handled");
    assert_eq!(vcpu.regs.rip, 0x1234);
}

/// What is left of a jump that became a return is no breakpoint of the guest's, even where the bytes there, read as
/// instructions, go on as the file's do.
#[test]
fn an_instruction_behind_a_shortened_return_is_one() {
    const JUMP_AND_CALL: [u8; 10] = [0xe9, 0x15, 0x79, 0xd5, 0x00, 0xe8, 0x80, 0x23, 0x01, 0x00];
    let mut kernel = SyntheticKernel::new();
    let rest_init = kernel.function("rest_init", &PLAIN);
    let jump = kernel.function("probed", &[&JUMP_AND_CALL[..], &PLAIN].concat());
    let behind = jump.wrapping_add(JUMP_AND_CALL.len() as u64);
    kernel.return_sites(&[jump, behind]);
    let rig = Rig::new(&kernel, &["kprobe:probed+0xa"]);
    let written = rig
        .engine
        .writes
        .on_guest_write(Gpa(gpa(jump)), &[0xc3, 0xcc, 0xcc, 0xcc, 0xcc]);
    assert_eq!(written.expect("handled"), Written::Merged);
    reach(&rig, rest_init);
    assert_eq!(
        rig.states(),
        [ProbeState::Armed],
        "{:?}",
        rig.probe(0).reason
    );
}

#[test]
fn plants_in_init_text_go_before_it_is_freed() {
    let mut kernel = SyntheticKernel::new();
    let free_initmem = kernel.function("free_initmem", &PLAIN);
    kernel.function("stays", &PLAIN);
    let goes = kernel.init_function("goes", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:goes", "kprobe:stays"]);
    rig.engine
        .hits
        .on_hit(&mut vcpu(goes), goes)
        .expect("handled");
    reach(&rig, free_initmem);
    assert_eq!(rig.states(), [ProbeState::Gone, ProbeState::Armed]);
    assert_eq!((rig.seen(goes), rig.probe(0).hits), (PLAIN[0], 1));
    assert!(
        rig.paused
            .read_only()
            .iter()
            .all(|(_, end)| *end <= gpa(goes))
    );
    assert_eq!(rig.hits().len(), 1, "kernel event probes emit no events");
}

#[test]
fn plants_in_init_text_go_although_an_injection_skips_the_function_that_frees_it() {
    let mut kernel = SyntheticKernel::new();
    let free_initmem = kernel.function("free_initmem", &PLAIN);
    let goes = kernel.init_function("goes", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:goes"]);
    let registered = rig
        .engine
        .register(&rig.paused, &[skipping("kprobe:free_initmem")]);
    registered.expect("registered");
    let mut vcpu = vcpu(free_initmem);
    let outcome = rig
        .engine
        .hits
        .on_hit(&mut vcpu, free_initmem)
        .expect("handled");
    assert_eq!(outcome, HitOutcome::NeedsPause);
    let run = |_: &mut _, _: text::To<'_>| panic!("nothing to run");
    let hit = rig
        .engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, free_initmem, run);
    hit.expect("handled");
    assert_ne!(vcpu.regs.rip, free_initmem.0, "skipped");
    assert_eq!(
        (rig.states()[0], rig.seen(goes)),
        (ProbeState::Gone, PLAIN[0])
    );
}

/// The kernel reuses freed init text for other data.
#[test]
fn probe_on_init_text_that_was_freed_is_gone() {
    for is_watched in [true, false] {
        let mut kernel = SyntheticKernel::new();
        let free_initmem = kernel.function("free_initmem", &PLAIN);
        let goes = kernel.init_function("goes", &PLAIN);
        let rig = Rig::new(&kernel, &["kprobe:goes"]);
        let (engine, paused) = (&rig.engine, &rig.paused);
        engine.set_armed(paused, is_watched).expect("set");
        reach(&rig, free_initmem);
        engine.set_armed(paused, true).expect("armed");
        let spec: manifest::ProbeSpec = "kretprobe:goes".parse().expect("a probe");
        engine.register(paused, &[spec.into()]).expect("registered");
        assert_eq!(rig.states(), [ProbeState::Gone; 2], "watched: {is_watched}");
        assert_eq!(rig.seen(goes), PLAIN[0]);
        // No plant is possible there for a return site either.
        assert!(!engine.running.can_return_to(goes.wrapping_add(1)));
    }
}

#[test]
fn a_panic_is_noted_with_its_message() {
    let (kernel, panic) = one("panic", &PLAIN);
    for (message, expected) in [
        (&b"out of luck: %s\n\0"[..], "out of luck: %s".to_owned()),
        (&[b'x'; 0x1000][..], "x".repeat(256)),
        (&b"bad \xff\0"[..], "bad \u{fffd}".to_owned()),
    ] {
        let rig = Rig::new(&kernel, &[]);
        rig.memory.put(DATA, message);
        let mut vcpu = vcpu(panic);
        vcpu.regs.rdi = DATA;
        rig.engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &rig.paused, panic, |_, _| {
                panic!("nothing to run")
            })
            .expect("handled");
        assert_eq!(
            rig.engine.crashes.panicked().expect("noted").message,
            expected
        );
        assert!(rig.notes()[0].text.contains(&expected));
    }
    // A pointer to nowhere.
    let rig = Rig::new(&kernel, &[]);
    let mut vcpu = vcpu(panic);
    vcpu.regs.rdi = MEMORY_BYTES as u64;
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, panic, |_, _| {
            panic!("nothing to run")
        })
        .expect("handled");
    assert_eq!(rig.engine.crashes.panicked().expect("noted").message, "");
}

#[test]
fn panic_stack_is_found_by_its_calls() {
    let mut kernel = SyntheticKernel::new();
    let panic = kernel.function("panic", &PLAIN);
    // `nop; call …; ret`
    let caller = kernel.function("caller", &[0x90, 0xe8, 0, 0, 0, 0, 0xc3]);
    let rig = Rig::new(&kernel, &[]);
    let mut vcpu = vcpu(panic);
    let stack = [caller.0 + 6, 0, caller.0 + 5, u64::MAX, DATA, caller.0 + 6];
    for (n, word) in (0..).zip(stack) {
        rig.memory.put(vcpu.regs.rsp + 8 * n, &word.to_le_bytes());
    }
    vcpu.regs.rdi = DATA;
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, panic, |_, _| {
            panic!("nothing to run")
        })
        .expect("handled");
    let crash = rig.engine.crashes.panicked().expect("noted").crash;
    assert_eq!((crash.vcpu, crash.task), (0, None));
    assert_eq!((crash.regs.rip, crash.regs.rdi), (panic.into(), Hex(DATA)));
    let is_caller = |frame: &Frame| frame.symbol.starts_with("caller+0x6/");
    assert_eq!(crash.frames.len(), 2, "{:?}", crash.frames);
    assert!(crash.frames.iter().all(is_caller), "{:?}", crash.frames);
    assert_eq!(crash.frames[0].ip, Hex(caller.0 + 6));
}

/// The engine locates the kernel by the first valid value written to MSR_LSTAR.
#[test]
fn a_kernel_that_moves_itself_is_armed_where_it_says_that_it_is() {
    const SLIDE: u64 = 0x40_0000;
    const LOADED_AT: u64 = 0x14_0000;
    let mut kernel = SyntheticKernel::new();
    let entry = kernel.function("entry_SYSCALL_64", &PLAIN);
    let probed = kernel.function("probed", &PLAIN);
    let memory = memory_of(&kernel, LOADED_AT, TEXT_ENTRY + SLIDE / (2 << 20));
    let rig = Rig::unarmed(memory, &kernel, &["kprobe:probed"], ABILITIES);
    rig.engine.await_kernel();
    let before = rig.memory.bytes();
    let mut vcpu = vcpu(Gva(0));
    // An invalid first value, and a value whose address is not mapped.
    for lstar in [Gva(0x1234), entry] {
        rig.engine
            .handover
            .locate(&mut vcpu, &rig.paused, lstar)
            .expect("noted");
        assert_eq!(rig.states(), [ProbeState::Pending]);
        assert!(rig.memory.bytes() == before);
    }
    let there = |at: Gva| at.wrapping_add(SLIDE);
    rig.engine
        .handover
        .locate(&mut vcpu, &rig.paused, there(entry))
        .expect("located");
    assert_eq!(rig.states(), [ProbeState::Armed]);
    assert_eq!(rig.probe(0).ip, Some(Hex(there(probed).0)));
    let planted = Gpa(LOADED_AT + (probed.0 - TEXT.0));
    assert_eq!(
        rig.memory.bytes()[usize::try_from(planted.0).expect("small")],
        PORT
    );
    assert_eq!(rig.paused.read_only(), [(LOADED_AT, LOADED_AT + 0x1000)]);

    vcpu.regs.rip = there(probed).0;
    vcpu.regs.rsp = DATA;
    rig.engine
        .hits
        .on_hit(&mut vcpu, there(probed))
        .expect("handled");
    assert_eq!(rig.hits()[0].ip, Hex(there(probed).0));
    assert_eq!(&*rig.hits()[0].symbol, "probed+0x0");
}

/// What is looked up while the guest runs may be registered when more is known of it.
#[test]
fn an_address_that_was_looked_up_before_the_kernel_moved_is_looked_up_again() {
    const SLIDE: u64 = 0x40_0000;
    const LOADED_AT: u64 = 0x14_0000;
    let mut kernel = SyntheticKernel::new();
    let entry = kernel.function("entry_SYSCALL_64", &PLAIN);
    let probed = kernel.function("probed", &PLAIN);
    let memory = memory_of(&kernel, LOADED_AT, TEXT_ENTRY + SLIDE / (2 << 20));
    let rig = Rig::unarmed(memory, &kernel, &[], ABILITIES);
    rig.engine.await_kernel();
    let at = |address: Gva| {
        let spec: ProbeSpec = format!("kprobe:{:#x}", address.0).parse().expect("a probe");
        [ProbeConfig::from(spec)]
    };
    let stale = rig.engine.prepare(&at(probed)).expect("it is in the file");
    let lost = rig.engine.prepare(&at(entry)).expect("it is in the file");
    rig.engine
        .handover
        .locate(&mut vcpu(Gva(0)), &rig.paused, entry.wrapping_add(SLIDE))
        .expect("located");
    for prepared in [stale, lost] {
        let registered = rig.engine.register_prepared(&rig.paused, prepared);
        assert!(matches!(registered, Err(RegisterError::Resolve(_))));
    }
    assert!(rig.engine.inventory().ids().is_empty());
    let there = probed.wrapping_add(SLIDE);
    let prepared = rig.engine.prepare(&at(there)).expect("it runs there");
    rig.engine
        .register_prepared(&rig.paused, prepared)
        .expect("registered");
    assert_eq!(rig.probe(0).ip, Some(Hex(there.0)));
}

#[test]
fn error_while_the_guest_runs_refuses_the_pending_probe() {
    let mut kernel = SyntheticKernel::new();
    let rest_init = kernel.function("rest_init", &PLAIN);
    kernel.function("plain", &PLAIN);
    let patched = kernel.function("patched", &JUMP);
    kernel.return_sites(&[patched]);
    let rig = Rig::new(&kernel, &["kprobe:plain", "kprobe:patched"]);
    let before = rig.memory.bytes();
    let mut vcpu = vcpu(rest_init);
    rig.engine
        .hits
        .on_hit(&mut vcpu, rest_init)
        .expect("handled");
    // The first is for the text as a whole.
    rig.paused.requests.fail(2);
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, rest_init, |_, _| {
            panic!("nothing to step")
        })
        .expect("the guest runs on");
    assert_eq!(rig.states(), [ProbeState::Armed, ProbeState::Refused]);
    assert_eq!(rig.seen(patched), JUMP[0]);
    // But for the stack, where the kernel event probe's own instruction has pushed.
    let stack = usize::try_from(super::STACK).expect("small");
    assert!(rig.memory.bytes()[stack..] == before[stack..]);
    let reason = rig.probe(1).reason.expect("a reason");
    assert!(
        reason.contains("cannot arm the probes: cannot plant at"),
        "{reason}"
    );
}
