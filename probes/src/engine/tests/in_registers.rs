//! The level `registers`: debug registers instead of plants.

use std::sync::Arc;

use address::Gva;
use events::{ProbeId, ProbeState};
use manifest::{ProbeConfig, ProbeSpec, Stealth};
use text::{RFLAGS_RF, Vcpu as _};

use super::uprobes::{protected, vcpu_at};
use super::{ABILITIES, PLAIN, Rig, SyntheticKernel, gpa, one};
use crate::engine::EngineAction;
use crate::engine::abilities::Abilities;
use crate::engine::hits::outcome::HitOutcome;
use crate::registry::{Probe, Purpose};

const IN_REGISTERS: Abilities = Abilities {
    stealth: Stealth::Registers,
    ..ABILITIES
};

/// `cpuid; ret`: for the hardware.
const CPUID: [u8; 3] = [0x0f, 0xa2, 0xc3];

fn probe(spec: &str) -> ProbeConfig<EngineAction> {
    let config = ProbeConfig::from(spec.parse::<ProbeSpec>().expect("a probe"));
    config.with_action(EngineAction::default())
}

fn register(rig: &Rig, spec: &str) -> ProbeId {
    let ids = rig.engine.register(&rig.paused, &[probe(spec)]);
    ids.expect("registered")[0]
}

fn set_enabled(rig: &Rig, id: ProbeId, enabled: bool) {
    let known = rig.engine.set_enabled(&rig.paused, id, enabled);
    assert!(known.expect("changed"));
}

/// Five functions, and the addresses of their entries.
fn five() -> (SyntheticKernel, [Gva; 5]) {
    let mut kernel = SyntheticKernel::new();
    let at = ["a", "b", "c", "d", "e"].map(|name| kernel.function(name, &PLAIN));
    (kernel, at)
}

const FOUR: [&str; 4] = ["kprobe:a", "kprobe:b", "kprobe:c", "kprobe:d"];

#[test]
fn hit_is_counted_and_nothing_in_memory_changes() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::with(&kernel, &["kprobe:f"], IN_REGISTERS);
    assert_eq!(rig.seen(at), PLAIN[0]);
    assert_eq!(protected(&rig), []);
    assert_eq!(rig.paused.breakpoints(), [Some(at), None, None, None]);
    let mut vcpu = vcpu_at(at);
    let hit = rig.engine.hits.on_debug_hit(&mut vcpu, 1, at);
    assert_eq!(hit.expect("handled"), HitOutcome::Resume);
    assert_eq!((rig.probe(0).hits, vcpu.regs.rip), (1, at.0 + 1));
}

#[test]
fn instruction_for_the_hardware_runs_alone_without_rf() {
    let (kernel, at) = one("f", &CPUID);
    let rig = Rig::with(&kernel, &["kprobe:f"], IN_REGISTERS);
    let mut vcpu = vcpu_at(at);
    let hit = rig.engine.hits.on_debug_hit(&mut vcpu, 1, at);
    assert_eq!(hit.expect("handled"), HitOutcome::NeedsPause);
    let hits = &rig.engine.paused_hits;
    let hit = hits.on_paused_debug_hit(&mut vcpu, &rig.paused, at, |_, _| {
        unreachable!("the caller runs the vCPU")
    });
    assert_eq!(hit.expect("handled"), HitOutcome::NeedsPause);
    assert_eq!(vcpu.regs.rflags & RFLAGS_RF, 0);
    assert_eq!((rig.probe(0).hits, vcpu.regs.rip), (1, at.0));
}

#[test]
fn probe_that_goes_while_the_vcpu_waits_leaves_the_instruction_to_the_guest() {
    let (kernel, at) = one("f", &CPUID);
    let rig = Rig::with(&kernel, &[], IN_REGISTERS);
    let id = register(&rig, "kprobe:f");
    let mut vcpu = vcpu_at(at);
    let hit = rig.engine.hits.on_debug_hit(&mut vcpu, 1, at);
    assert_eq!(hit.expect("handled"), HitOutcome::NeedsPause);
    let removed = rig.engine.unregister(&rig.paused, &[id]);
    assert_eq!(removed.expect("removed"), 1);
    let hits = &rig.engine.paused_hits;
    let hit = hits.on_paused_debug_hit(&mut vcpu, &rig.paused, at, |_, _| {
        unreachable!("no probe is left")
    });
    assert_eq!(hit.expect("handled"), HitOutcome::Resume);
    assert_eq!(vcpu.regs.rip, at.0);
}

/// A debug register fires at an address, also in front of the fault of the fetch.
#[test]
fn program_that_jumps_to_a_probed_instruction_executes_nothing() {
    let (kernel, at) = one("f", &PLAIN);
    for abilities in [IN_REGISTERS, ABILITIES] {
        let rig = Rig::with(&kernel, &["kprobe:f"], abilities);
        if abilities.stealth == Stealth::Writes {
            // The kernel rewrites the instruction: a debug register replaces the plant.
            let stood_in = rig.engine.writes.on_paused_guest_write(
                &rig.paused,
                address::Gpa(gpa(at)),
                &[0x90],
            );
            stood_in.expect("merged");
        }
        assert_eq!(rig.paused.breakpoints()[0], Some(at));
        let mut vcpu = vcpu_at(at);
        vcpu.state.privilege = 3;
        let hit = rig.engine.hits.on_debug_hit(&mut vcpu, 1, at);
        assert_eq!(hit.expect("handled"), HitOutcome::Resume);
        assert_eq!((rig.probe(0).hits, vcpu.regs.rip), (0, at.0));
        // The processor raises the page fault.
        assert_ne!(vcpu.regs.rflags & RFLAGS_RF, 0);
    }
}

#[test]
fn other_code_at_the_address_of_a_probed_instruction_is_not_hit() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::with(&kernel, &["kprobe:f"], IN_REGISTERS);
    let mut vcpu = vcpu_at(at);
    // No page table there has the kernel.
    vcpu.state.paging.cr3 = super::DATA;
    let hit = rig.engine.hits.on_debug_hit(&mut vcpu, 1, at);
    assert_eq!(hit.expect("handled"), HitOutcome::Resume);
    assert_eq!((rig.probe(0).hits, vcpu.regs.rip), (0, at.0));
}

/// The processor of a program that has jumped to the kernel walks the page tables, and may find a protected one.
#[test]
fn exit_of_a_program_in_front_of_a_probed_instruction_is_no_hit() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::with(&kernel, &["kprobe:f"], IN_REGISTERS);
    let mut vcpu = vcpu_at(at);
    vcpu.state.privilege = 3;
    let plant = rig.engine.hits.plants.plant_at(&mut vcpu, at);
    assert!(plant.expect("looked up").is_none());
}

#[test]
fn watched_data_does_not_share_the_page_of_a_register() {
    let (mut kernel, at) = one("f", &PLAIN);
    let counter = kernel.variable("counter", 0);
    let rig = Rig::with(&kernel, &["kprobe:f"], IN_REGISTERS);
    let (text, data) = (gpa(at), gpa(counter));
    let plants = &rig.engine.hits.plants;
    assert!(plants.has_register_on(address::Gpa(text)));
    assert!(!plants.has_register_on(address::Gpa(data)));
}

/// The guest's handler of the fault returns with RF. A KVM that interprets the kernel reports the breakpoint all the same; elsewhere, RF at the
/// exit says nothing.
#[test]
fn instruction_that_is_executed_again_after_its_fault_is_hit_once() {
    let (kernel, at) = one("f", &PLAIN);
    for (interprets, hits) in [(true, 0), (false, 1)] {
        let abilities = Abilities {
            interprets,
            ..IN_REGISTERS
        };
        let rig = Rig::with(&kernel, &["kprobe:f"], abilities);
        let mut vcpu = vcpu_at(at);
        vcpu.regs.rflags |= RFLAGS_RF;
        let hit = rig.engine.hits.on_debug_hit(&mut vcpu, 1, at);
        assert_eq!(hit.expect("handled"), HitOutcome::Resume);
        assert_eq!((rig.probe(0).hits, vcpu.regs.rip), (hits, at.0 + 1));
        assert_eq!(vcpu.regs.rflags & RFLAGS_RF, 0);
    }
}

/// A page with a register may be protected for another reason, and is emulated.
#[test]
fn emulated_instruction_is_hit_without_its_register() {
    let mut kernel = SyntheticKernel::new();
    let rest_init = kernel.function("rest_init", &PLAIN);
    let at = kernel.function("f", &CPUID);
    let rig = Rig::with(&kernel, &["kprobe:rest_init", "kprobe:f"], IN_REGISTERS);
    assert_eq!(protected(&rig)[0].0, gpa(rest_init) & !0xfff);
    assert_eq!(rig.paused.breakpoints()[0], Some(at));
    let accesses = &rig.engine.protected_accesses;
    let mut vcpu = vcpu_at(at);
    let hit = accesses.on_protected_access(&mut vcpu, at);
    assert_eq!(hit.expect("handled"), HitOutcome::NeedsPause);
    assert_eq!(rig.probe(1).hits, 1);
    // The page is no longer hidden when the vCPU has its turn, and the instruction still runs alone.
    let ids = rig.engine.inventory().ids();
    rig.engine
        .unregister(&rig.paused, &ids[..1])
        .expect("removed");
    assert_eq!(accesses.take_waiting(0), Some(at));
    let hits = &rig.engine.paused_hits;
    let hit = hits.on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| {
        unreachable!("the caller runs the vCPU")
    });
    assert_eq!(hit.expect("handled"), HitOutcome::NeedsPause);
    assert_eq!((rig.probe(0).hits, vcpu.regs.rip), (1, at.0));
}

#[test]
fn fifth_site_is_refused_until_a_probe_is_removed() {
    let (kernel, at) = five();
    let rig = Rig::with(&kernel, &FOUR, IN_REGISTERS);
    let refused = register(&rig, "kprobe:e");
    // A site that has a register has room for any number of probes.
    let shared = register(&rig, "kprobe:b");
    let registers = [0, 1, 2, 3].map(|index| Some(at[index]));
    assert_eq!(rig.paused.breakpoints(), registers);
    assert_eq!(rig.states()[4..], [ProbeState::Refused, ProbeState::Armed]);
    let ids = rig.engine.inventory().ids();
    rig.engine
        .unregister(&rig.paused, &[ids[0], shared])
        .expect("removed");
    assert_eq!(rig.states()[3], ProbeState::Refused);
    rig.engine
        .unregister(&rig.paused, &[refused])
        .expect("removed");
    register(&rig, "kprobe:e");
    assert_eq!(rig.states(), [ProbeState::Armed; 4]);
    assert!(rig.paused.breakpoints().contains(&Some(at[4])));
}

#[test]
fn disabled_probe_keeps_its_register() {
    let (kernel, at) = five();
    let rig = Rig::with(&kernel, &FOUR, IN_REGISTERS);
    let ids = rig.engine.inventory().ids();
    set_enabled(&rig, ids[0], false);
    assert!(!rig.paused.breakpoints().contains(&Some(at[0])));
    register(&rig, "kprobe:e");
    set_enabled(&rig, ids[0], true);
    let states = rig.states();
    assert_eq!(states[..4], [ProbeState::Armed; 4]);
    assert_eq!(states[4], ProbeState::Refused);
    for armed in [false, true] {
        rig.engine.set_armed(&rig.paused, armed).expect("changed");
        let used = rig.paused.breakpoints().into_iter().flatten().count();
        assert_eq!(used, if armed { 4 } else { 0 });
    }
}

/// The order of the list does not count: the first probe waits for its module.
#[test]
fn module_that_is_loaded_takes_no_register_from_another_probe() {
    let (kernel, at) = five();
    let rig = Rig::with(&kernel, &["kprobe:e"], IN_REGISTERS);
    let list = rig.engine.probes.list.load_full();
    let place = list[0].place().expect("a place");
    let ids = rig.engine.inventory().ids();
    rig.engine.unregister(&rig.paused, &ids).expect("removed");
    let spec = "kprobe:m:e".parse::<ProbeSpec>().expect("a probe");
    let late = Probe::new(ProbeId(99), "kprobe:m:e".into(), Purpose::Count, None, true);
    let late = Arc::new(late.awaiting(spec));
    rig.engine
        .probes
        .list
        .store(Arc::new(vec![Arc::clone(&late)]));
    rig.engine.probes.count_interest(&late);
    let others = FOUR.map(|spec| register(&rig, spec));
    late.set_place(Some(place.as_ref().clone()));
    rig.engine.armer.reconcile(&rig.paused).expect("armed");
    use ProbeState::{Armed, Refused};
    assert_eq!(rig.states(), [Refused, Armed, Armed, Armed, Armed]);

    // With a register, the probe keeps it while the module is not loaded.
    rig.engine
        .unregister(&rig.paused, &others[..1])
        .expect("removed");
    late.status.set_state(ProbeState::Pending, None);
    rig.engine.armer.reconcile(&rig.paused).expect("armed");
    assert_eq!(rig.states(), [Armed; 4]);
    late.set_place(None);
    late.status.set_state(ProbeState::Gone, None);
    rig.engine.armer.reconcile(&rig.paused).expect("armed");
    register(&rig, FOUR[0]);
    assert_eq!(rig.states()[4], Refused);
    late.set_place(Some(place.as_ref().clone()));
    late.status.set_state(ProbeState::Pending, None);
    rig.engine.armer.reconcile(&rig.paused).expect("armed");
    assert_eq!(rig.states(), [Armed, Armed, Armed, Armed, Refused]);
    assert!(rig.paused.breakpoints().contains(&Some(at[4])));
}

#[test]
fn probe_that_is_enabled_late_takes_no_register_from_another() {
    let (kernel, _) = five();
    let rig = Rig::with(&kernel, &[], IN_REGISTERS);
    let off = ProbeConfig {
        enabled: false,
        ..probe("kprobe:e")
    };
    let ids = rig.engine.register(&rig.paused, &[off]);
    let id = ids.expect("registered")[0];
    for spec in FOUR {
        register(&rig, spec);
    }
    set_enabled(&rig, id, true);
    use ProbeState::{Armed, Refused};
    assert_eq!(rig.states(), [Refused, Armed, Armed, Armed, Armed]);
}

#[test]
fn probe_of_returns_is_refused() {
    let (kernel, _) = one("f", &PLAIN);
    let rig = Rig::with(&kernel, &["kretprobe:f"], IN_REGISTERS);
    assert_eq!(rig.states(), [ProbeState::Refused]);
    let reason = rig.probe(0).reason.expect("a reason");
    assert!(reason.contains("to which calls return"), "{reason}");
}

#[test]
fn host_without_debug_registers_refuses_probes() {
    let (kernel, _) = one("f", &PLAIN);
    let abilities = Abilities {
        debug_execute: false,
        ..IN_REGISTERS
    };
    let rig = Rig::with(&kernel, &["kprobe:f"], abilities);
    assert_eq!(rig.states(), [ProbeState::Refused]);
}

#[test]
fn kernel_event_of_the_boot_leaves_its_register_to_the_user_s_fourth_site() {
    let (mut kernel, at) = five();
    let rest_init = kernel.function("rest_init", &PLAIN);
    let rig = Rig::with(&kernel, &FOUR[..3], IN_REGISTERS);
    assert!(rig.paused.breakpoints().contains(&Some(rest_init)));
    let id = register(&rig, "kprobe:d");
    let registers = [0, 1, 2, 3].map(|index| Some(at[index]));
    let mut set = rig.paused.breakpoints();
    set.sort_unstable();
    assert_eq!(set, registers);
    let page = gpa(rest_init) & !0xfff;
    assert_eq!(protected(&rig).first().map(|it| it.0), Some(page));
    rig.engine.unregister(&rig.paused, &[id]).expect("removed");
    assert!(rig.paused.breakpoints().contains(&Some(rest_init)));
    assert_eq!(protected(&rig), []);
}

#[test]
fn user_s_probe_where_hyprobe_has_its_own_is_a_hidden_plant() {
    let mut kernel = SyntheticKernel::new();
    let rest_init = kernel.function("rest_init", &PLAIN);
    let rig = Rig::with(&kernel, &["kprobe:rest_init"], IN_REGISTERS);
    assert_eq!(rig.paused.breakpoints(), [None; 4]);
    assert_eq!(rig.states(), [ProbeState::Armed]);
    assert_eq!(protected(&rig)[0].0, gpa(rest_init) & !0xfff);
}

/// The guest executes elsewhere what its own jump displaces, where no register would fire.
#[test]
fn register_is_in_the_way_of_the_guest_s_own_jump() {
    let (kernel, at) = one("f", &PLAIN);
    let rig = Rig::with(&kernel, &["kprobe:f+1"], IN_REGISTERS);
    let paging = vcpu_at(at).system_state().expect("a state").paging;
    let planted = |len| rig.engine.hits.plants.planted_in(&paging, at, len);
    assert_eq!(planted(1), []);
    assert_eq!(planted(5), [address::Gpa(gpa(at) + 1)]);
}
