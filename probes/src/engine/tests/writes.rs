//! The guest rewrites probed text.

use address::{Gpa, Gva};
use events::Tier;
use text::{PlantByte, Written};

use super::{ABILITIES, Abilities, PLAIN, RESUME_FLAG, Rig, gpa, one, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::SyntheticKernel;

const PORT: u8 = PlantByte::Port.value();
/// `nop dword ptr [rax]`
const NOP3: [u8; 3] = [0x0f, 0x1f, 0x00];
const WITHOUT_DEBUG_REGISTERS: Abilities = Abilities {
    debug_execute: false,
    ..ABILITIES
};

/// The write may cover the plant or only the instruction's tail.
#[test]
fn displaced_instruction_follows_guest_writes() {
    // mov eax, 0x11; ret
    let (kernel, at) = one("patched", &[0xb8, 0x11, 0, 0, 0, 0xc3]);
    let rig = Rig::with(&kernel, &["kprobe:patched"], WITHOUT_DEBUG_REGISTERS);
    let run = || {
        let mut vcpu = vcpu(at);
        assert_eq!(
            rig.engine.hits.on_hit(&mut vcpu, at).expect("handled"),
            HitOutcome::Resume
        );
        (vcpu.regs.rip - at.0, vcpu.regs.rax)
    };
    assert_eq!(run(), (5, 0x11));
    let tail = Gpa(gpa(at) + 1);
    assert_eq!(
        rig.engine
            .writes
            .on_guest_write(tail, &[0x22])
            .expect("merged"),
        Written::Merged
    );
    assert_eq!(run(), (5, 0x22));
    assert!(
        !rig.engine.running.wants_stand_in(Gpa(gpa(at)), &NOP3),
        "no debug registers here"
    );
    rig.engine
        .writes
        .on_guest_write(Gpa(gpa(at)), &NOP3)
        .expect("merged");
    assert_eq!((rig.seen(at), run()), (PORT, (3, 0)));
    assert_eq!(rig.probe(0).hits, 3);
}

/// The hardware executes undecodable bytes, and raises #UD.
#[test]
fn bytes_that_are_no_instruction_are_executed_in_place() {
    let (kernel, at) = one("patched", &PLAIN);
    let rig = Rig::with(&kernel, &["kprobe:patched"], WITHOUT_DEBUG_REGISTERS);
    rig.engine
        .writes
        .on_guest_write(Gpa(gpa(at)), &[0x06])
        .expect("merged");
    let outcome = rig.engine.hits.on_hit(&mut vcpu(at), at);
    assert_eq!(outcome.expect("handled"), HitOutcome::NeedsPause);
}

#[test]
fn a_write_elsewhere_is_not_ours() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    let elsewhere = Gpa(gpa(at) + 0x1000);
    assert!(!rig.engine.running.wants_stand_in(elsewhere, &NOP3));
    assert_eq!(
        rig.engine
            .writes
            .on_guest_write(elsewhere, &NOP3)
            .expect("looked at"),
        Written::NotOurs
    );
}

/// The guest reads back what it has written, and the next execution is a hit.
#[test]
fn a_debug_register_stands_in_for_a_plant_that_is_written_over() {
    let (kernel, at) = one("patched", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:patched"]);
    let place = Gpa(gpa(at));
    assert!(rig.engine.writes.must_pause_for_write(place, &NOP3));
    let written = rig
        .engine
        .writes
        .on_paused_guest_write(&rig.paused, place, &NOP3);
    assert_eq!(written.expect("handled"), Written::Merged);
    assert_eq!(rig.seen(at), NOP3[0]);
    assert_eq!(rig.paused.breakpoints(), [Some(at), None, None, None]);
    // Writing again needs nothing more.
    assert!(!rig.engine.writes.must_pause_for_write(place, &NOP3));

    let mut vcpu = vcpu(at);
    let outcome = rig
        .engine
        .hits
        .on_debug_hit(&mut vcpu, 1, at)
        .expect("handled");
    assert_eq!((outcome, rig.hits().len()), (HitOutcome::NeedsPause, 0));
    // The register may leave the flag behind that would keep the next one from firing.
    vcpu.regs.rflags |= RESUME_FLAG;
    rig.engine
        .paused_hits
        .on_paused_debug_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("nothing to run"))
        .expect("handled");
    assert_eq!((rig.seen(at), vcpu.regs.rip), (PORT, at.0));
    assert_eq!(vcpu.regs.rflags & RESUME_FLAG, 0);
    assert_eq!(rig.paused.breakpoints(), [None; 4]);
    vcpu.regs.rflags |= RESUME_FLAG;
    let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!((outcome, vcpu.regs.rip), (HitOutcome::Resume, at.0 + 3));
    assert_eq!(vcpu.regs.rflags & RESUME_FLAG, 0);
    let probe = rig.probe(0);
    assert_eq!(
        (probe.hits, rig.hits().len(), probe.tier),
        (1, 1, Some(Tier::Emulated))
    );
}

/// The guest may be about to compare either site.
#[test]
fn withdrawn_plants_whose_registers_watchpoints_need_stay_withdrawn_and_count_a_miss() {
    let mut kernel = SyntheticKernel::new();
    let places: Vec<Gva> = (0..2)
        .map(|i| kernel.function(&format!("patched{i}"), &PLAIN))
        .collect();
    for name in ["a", "b", "c", "d"] {
        kernel.variable(name, 0);
    }
    let rig = Rig::new(&kernel, &["kprobe:patched*"]);
    for at in &places {
        let place = Gpa(gpa(*at));
        let writes = &rig.engine.writes;
        let written = writes.on_paused_guest_write(&rig.paused, place, &NOP3);
        written.expect("merged");
    }
    let seen = || [rig.seen(places[0]), rig.seen(places[1])];
    let missed = || [0, 1].map(|probe| rig.probe(probe).missed.len());
    let watch = |names: &[&str]| {
        for name in names {
            let spec = format!("watch:{name}:8:hw").parse::<manifest::ProbeSpec>();
            let spec = spec.expect("a probe");
            let ids = rig.engine.register(&rig.paused, &[spec.into()]);
            ids.expect("registered");
        }
    };
    watch(&["a", "b"]);
    assert_eq!((seen(), missed()), ([NOP3[0]; 2], [0, 0]));
    watch(&["c"]);
    assert_eq!((seen(), missed()), ([NOP3[0]; 2], [1, 0]));
    watch(&["d"]);
    assert_eq!((seen(), missed()), ([NOP3[0]; 2], [1, 1]));
}

/// The guest has read the first rewritten site before the write to the fifth.
#[test]
fn the_oldest_makes_room_when_a_fifth_is_written_over() {
    let mut kernel = SyntheticKernel::new();
    let places: Vec<Gva> = (0..5)
        .map(|i| kernel.function(&format!("patched{i}"), &PLAIN))
        .collect();
    let rig = Rig::new(&kernel, &["kprobe:patched*"]);
    let seen = || places.iter().map(|at| rig.seen(*at)).collect::<Vec<u8>>();
    let write = |index: usize| {
        let place = Gpa(gpa(places[index]));
        rig.engine
            .paused_hits
            .stand_ins
            .stand_in(&rig.paused, place, 1)
            .expect("withdrawn");
        rig.engine
            .writes
            .on_guest_write(place, &[0x90])
            .expect("merged");
    };
    for index in 0..5 {
        write(index);
    }
    assert_eq!(seen(), [PORT, 0x90, 0x90, 0x90, 0x90]);
    let watched = [1, 2, 3, 4].map(|index: usize| Some(places[index]));
    assert_eq!(rig.paused.breakpoints(), watched);
    let mut vcpu = vcpu(places[0]);
    rig.engine
        .hits
        .on_hit(&mut vcpu, places[0])
        .expect("handled");
    assert_eq!(vcpu.regs.rip, places[0].0 + 1, "past what was written");
    write(0);
    assert_eq!(seen(), [0x90, PORT, 0x90, 0x90, 0x90]);
    assert_eq!(rig.probe(0).missed.len(), 0);
}

/// Executions are missed, but the guest reads back its own bytes.
#[test]
fn without_any_debug_register_to_be_had_executions_are_missed() {
    const JUMP: [u8; 5] = [0xe9, 0, 0x10, 0, 0];
    let mut kernel = SyntheticKernel::new();
    let keyed: Vec<Gva> = (0..4)
        .map(|i| kernel.function(&format!("keyed{i}"), &JUMP))
        .collect();
    let at = kernel.function("patched", &PLAIN);
    kernel.jump_labels(&keyed);
    let rig = Rig::new(&kernel, &["kprobe:patched", "kprobe:keyed*"]);
    let place = Gpa(gpa(at));
    rig.engine
        .paused_hits
        .stand_ins
        .stand_in(&rig.paused, place, 1)
        .expect("withdrawn");
    rig.engine
        .writes
        .on_guest_write(place, &[0x90])
        .expect("merged");
    assert_eq!(rig.seen(at), 0x90);
    assert_eq!(rig.probe(0).missed.get("unwatched"), Some(&1));
    assert_eq!(rig.notes().len(), 1);
}

#[test]
fn disarming_ends_the_breakpoint_fallback() {
    let (kernel, at) = one("patched", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:patched"]);
    rig.engine
        .paused_hits
        .stand_ins
        .stand_in(&rig.paused, Gpa(gpa(at)), 1)
        .expect("withdrawn");
    rig.engine
        .writes
        .on_guest_write(Gpa(gpa(at)), &[0x90])
        .expect("merged");
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert_eq!((rig.seen(at), rig.paused.breakpoints()), (0x90, [None; 4]));
    // The register fired before it was taken away: the guest goes on with its own instruction.
    let mut vcpu = vcpu(at);
    rig.engine
        .paused_hits
        .on_paused_debug_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("nothing to run"))
        .expect("handled");
    assert_eq!(vcpu.regs.rip, at.0);
}

/// The probed instruction itself writes to probed text. The hardware executes the instruction, so that the write traps.
#[test]
fn an_instruction_that_writes_to_probed_text_is_executed_in_place() {
    // mov [rdi], rax; ret
    let (mut kernel, writer) = one("writer", &[0x48, 0x89, 0x07, 0xc3]);
    let at = kernel.function("patched", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:writer", "kprobe:patched"]);
    let before = rig.memory.bytes();
    // Through the mapping that can be written; into the plant, and beside it from the page before.
    for address in [gpa(at), gpa(writer) - 4] {
        let mut vcpu = vcpu(writer);
        vcpu.regs.rdi = address;
        let outcome = rig.engine.hits.on_hit(&mut vcpu, writer).expect("handled");
        assert_eq!(outcome, HitOutcome::NeedsPause, "{address:#x}");
        assert!(rig.memory.bytes() == before, "nothing is half written");
    }
}
