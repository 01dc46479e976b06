//! Hidden plants: pages instead of bytes.

use address::Gva;
use events::Tier;
use manifest::{ProbeConfig, ProbeSpec, Stealth};
use text::testing::Injected;
use text::{RFLAGS_RF, Ran};
use vmm::{Protection, Shadow, kvm_debugregs};

use super::uprobes::{protected, vcpu_at};
use super::{ABILITIES, PLAIN, Rig, STACK, SyntheticKernel, gpa, one};
use crate::engine::EngineAction;
use crate::engine::abilities::Abilities;
use crate::engine::hits::outcome::HitOutcome;

const HIDING: Abilities = Abilities {
    stealth: Stealth::Reads,
    ..ABILITIES
};
/// RFLAGS.IF, and the bit that is always set.
const ENABLED: u64 = 0x202;

fn probe(spec: &str) -> ProbeConfig<EngineAction> {
    let config = ProbeConfig::from(spec.parse::<ProbeSpec>().expect("a probe"));
    config.with_action(EngineAction::default())
}

fn exit(rig: &Rig, vcpu: &mut text::testing::FakeVcpu, at: Gva) -> HitOutcome {
    let accesses = &rig.engine.protected_accesses;
    accesses.on_protected_access(vcpu, at).expect("handled")
}

#[test]
fn hit_is_counted_and_no_byte_changes() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::with(&kernel, &[], HIDING);
    let ids = rig.engine.register(&rig.paused, &[probe("kprobe:f")]);
    let ids = ids.expect("registered");
    assert_eq!(rig.seen(at), PLAIN[0]);
    assert_eq!(rig.paused.read_only(), []);
    assert_eq!(protected(&rig), [(gpa(at) & !0xfff, Protection::Accesses)]);
    let mut vcpu = vcpu_at(at);
    assert_eq!(exit(&rig, &mut vcpu, at), HitOutcome::Resume);
    let hit = rig.probe(0);
    assert_eq!((hit.hits, hit.exits), (1, 1));
    assert_eq!(hit.tier, Some(Tier::Emulated));
    assert_eq!(vcpu.regs.rip, at.0 + 1);
    rig.engine
        .unregister(&rig.paused, &ids)
        .expect("unregistered");
    assert_eq!(protected(&rig), []);
}

#[test]
fn bytes_that_no_decoder_knows_are_hit_once_and_run_alone() {
    let (kernel, at) = one("f", &[0x90, 0x90, 0xc3]);
    let rig = Rig::with(&kernel, &["kprobe:f"], HIDING);
    // The guest writes a byte that is no instruction in 64-bit mode.
    rig.memory.put(gpa(at), &[0x06]);
    let mut vcpu = vcpu_at(at);
    assert_eq!(exit(&rig, &mut vcpu, at), HitOutcome::NeedsPause);
    let accesses = &rig.engine.protected_accesses;
    assert_eq!(accesses.take_waiting(0), Some(at));
    let mut runs = 0;
    let outcome = rig
        .engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| {
            unreachable!("a hidden plant is left to the caller")
        });
    assert_eq!(outcome.expect("handled"), HitOutcome::NeedsPause);
    let stepped = accesses.on_paused_hidden_plant(&mut vcpu, &rig.paused, at, |vcpu, _| {
        runs += 1;
        assert!(rig.paused.lifted.load(std::sync::atomic::Ordering::Relaxed));
        vcpu.regs.rip = STACK;
        Ok(Ran::At(Gva(STACK)))
    });
    stepped.expect("executed");
    assert_eq!((runs, rig.probe(0).hits), (1, 1));
}

#[test]
fn breakpoint_of_the_guest_is_raised_in_front_of_the_hit() {
    let (kernel, at) = one("f", &[0x90, 0x90, 0xc3]);
    let rig = Rig::with(&kernel, &["kprobe:f"], HIDING);
    let mut vcpu = vcpu_at(at);
    // DR1 and DR2, enabled for execution: at the plant, and at the instruction behind.
    vcpu.debug_registers = kvm_debugregs {
        db: [0, at.0, at.0 + 1, 0],
        dr7: 1 << 2 | 1 << 4,
        ..kvm_debugregs::default()
    };
    assert_eq!(exit(&rig, &mut vcpu, at), HitOutcome::Resume);
    assert_eq!(vcpu.injected, [Injected::OwnBreakpoint(0b010)]);
    assert_eq!((vcpu.regs.rip, rig.probe(0).hits), (at.0, 0));
    // The guest's handler returns with RF.
    vcpu.regs.rflags |= RFLAGS_RF;
    assert_eq!(exit(&rig, &mut vcpu, at), HitOutcome::Resume);
    assert_eq!((vcpu.regs.rip, rig.probe(0).hits), (at.0 + 1, 1));
    let behind = at.wrapping_add(1);
    assert_eq!(exit(&rig, &mut vcpu, behind), HitOutcome::Resume);
    assert_eq!(vcpu.injected[1..], [Injected::OwnBreakpoint(0b100)]);
    assert_eq!(vcpu.regs.rip, behind.0);
}

#[test]
fn breakpoint_that_the_processor_has_raised_is_not_raised_again() {
    let (kernel, at) = one("f", &[0x90, 0x90, 0xc3]);
    let abilities = Abilities {
        breakpoint_before_fetch: true,
        ..HIDING
    };
    let rig = Rig::with(&kernel, &["kprobe:f+0x2"], abilities);
    let mut vcpu = vcpu_at(at);
    // DR0 and DR1: at the first instruction of the exit, and at the second.
    vcpu.debug_registers = kvm_debugregs {
        db: [at.0, at.0 + 1, 0, 0],
        dr7: 1 << 0 | 1 << 2,
        ..kvm_debugregs::default()
    };
    assert_eq!(exit(&rig, &mut vcpu, at), HitOutcome::Resume);
    assert_eq!(vcpu.injected, [Injected::OwnBreakpoint(0b10)]);
    assert_eq!(vcpu.regs.rip, at.0 + 1);
}

#[test]
fn breakpoint_that_has_fired_does_not_fire_where_the_instruction_runs_alone() {
    // `cpuid`, for the hardware.
    let (kernel, at) = one("f", &[0x0f, 0xa2, 0xc3]);
    let abilities = Abilities {
        breakpoint_before_fetch: true,
        ..HIDING
    };
    for (dr7, flag) in [(0, 0), (1, RFLAGS_RF)] {
        let rig = Rig::with(&kernel, &["kprobe:f"], abilities);
        let mut vcpu = vcpu_at(at);
        vcpu.debug_registers.db[0] = at.0;
        vcpu.debug_registers.dr7 = dr7;
        assert_eq!(exit(&rig, &mut vcpu, at), HitOutcome::NeedsPause);
        let accesses = &rig.engine.protected_accesses;
        let mut flags = None;
        accesses
            .on_paused_hidden_plant(&mut vcpu, &rig.paused, at, |vcpu, _| {
                flags = Some(vcpu.regs.rflags & RFLAGS_RF);
                vcpu.regs.rip += 2;
                Ok(Ran::At(Gva(vcpu.regs.rip)))
            })
            .expect("executed");
        assert_eq!((flags, rig.probe(0).hits), (Some(flag), 1));
    }
}

#[test]
fn int3_of_the_guest_over_a_hidden_plant_runs_alone() {
    let (kernel, at) = one("f", &[0x90, 0x90, 0xc3]);
    let rig = Rig::with(&kernel, &["kprobe:f"], HIDING);
    rig.memory.put(gpa(at), &[0xcc]);
    let mut vcpu = vcpu_at(at);
    assert_eq!(exit(&rig, &mut vcpu, at), HitOutcome::NeedsPause);
    assert_eq!((vcpu.injected.len(), rig.probe(0).hits), (0, 1));
}

#[test]
fn probe_that_comes_while_the_vcpu_waits_is_hit() {
    // `cpuid`, for the hardware.
    let (kernel, at) = one("f", &[0x0f, 0xa2, 0xc3]);
    let rig = Rig::with(&kernel, &["kprobe:f+0x2"], HIDING);
    let mut vcpu = vcpu_at(at);
    assert_eq!(exit(&rig, &mut vcpu, at), HitOutcome::NeedsPause);
    rig.engine
        .register(&rig.paused, &[probe("kprobe:f")])
        .expect("registered");
    let accesses = &rig.engine.protected_accesses;
    assert_eq!(accesses.take_waiting(0), None);
    let looked = accesses.on_paused_protected_access(&mut vcpu, &rig.paused, at, |_, _| {
        unreachable!("the vCPU exits again")
    });
    assert_eq!(looked.expect("handled"), HitOutcome::Resume);
    assert_eq!(exit(&rig, &mut vcpu, at), HitOutcome::NeedsPause);
    assert_eq!(rig.probe(1).hits, 1);
}

#[test]
fn vcpu_that_begins_to_accept_interrupts_enters_the_guest() {
    // `sti`, and two instructions of one byte, behind the probe.
    let (kernel, at) = one("f", &[0x90, 0xfb, 0x90, 0x90, 0xc3]);
    let rig = Rig::with(&kernel, &["kprobe:f"], HIDING);
    let mut vcpu = vcpu_at(at.wrapping_add(1));
    vcpu.regs.rflags &= !ENABLED | 2;
    assert_eq!(
        exit(&rig, &mut vcpu, at.wrapping_add(1)),
        HitOutcome::Resume
    );
    // The instruction behind `sti` is covered by the shadow.
    assert_eq!(vcpu.regs.rip, at.0 + 3);
    assert_eq!(vcpu.regs.rflags & ENABLED, ENABLED);
    assert_eq!(vcpu.blocking.shadow, Shadow::None);
}

#[test]
fn kernel_event_is_in_a_register_or_beside_the_user_s_probe() {
    let mut kernel = SyntheticKernel::new();
    let rest_init = kernel.function("rest_init", &PLAIN);
    kernel.function("f", &PLAIN);
    let rig = Rig::with(&kernel, &[], HIDING);
    assert_eq!(rig.paused.breakpoints()[0], Some(rest_init));
    assert_eq!(protected(&rig), []);
    rig.engine
        .register(&rig.paused, &[probe("kprobe:rest_init")])
        .expect("registered");
    assert_eq!(rig.paused.breakpoints(), [None; 4]);
    let mut vcpu = vcpu_at(rest_init);
    assert_eq!(exit(&rig, &mut vcpu, rest_init), HitOutcome::NeedsPause);
    assert_eq!(rig.probe(0).hits, 1);
}

#[test]
fn kernel_event_is_served_if_its_probe_leaves_the_plant_meanwhile() {
    let mut kernel = SyntheticKernel::new();
    let rest_init = kernel.function("rest_init", &PLAIN);
    let rig = Rig::with(&kernel, &[], HIDING);
    let ids = rig
        .engine
        .register(&rig.paused, &[probe("kprobe:rest_init")])
        .expect("registered");
    let mut vcpu = vcpu_at(rest_init);
    assert_eq!(exit(&rig, &mut vcpu, rest_init), HitOutcome::NeedsPause);
    rig.engine
        .unregister(&rig.paused, &ids)
        .expect("unregistered");
    assert_eq!(rig.paused.breakpoints()[0], Some(rest_init));
    let hits = &rig.engine.paused_hits;
    let outcome = hits.on_paused_hit(&mut vcpu, &rig.paused, rest_init, |_, _| {
        unreachable!("the emulator knows the instruction")
    });
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    assert!(rig.engine.running.boot_patched.get());
    assert_eq!(rig.paused.breakpoints(), [None; 4]);
    assert_eq!(vcpu.regs.rip, rest_init.0 + 1);
}
