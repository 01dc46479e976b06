//! Whose hit it is, and who is told.

use introspect::Gva;

use super::{PLAIN, RDTSC, RESUME_FLAG, Rig, STACK, TEXT_GPA, gpa, one, vcpu};
use crate::engine::trap::HitOutcome;
use crate::engine::{Action, NewProbe};
use crate::guest::fake::Injected;
use crate::guest::{GuestError, Ran};
use crate::resolve::synthetic::{SyntheticKernel, TEXT};
use crate::{Abilities, Hex, PlantByte, ProbeSpec, Tier};

#[test]
fn a_hit_is_counted_and_told_with_the_registers_before_the_instruction() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    assert_eq!(rig.seen(at), PlantByte::Port.value());
    let mut vcpu = vcpu(at);
    vcpu.index = 3;
    (vcpu.regs.rdi, vcpu.regs.rsi, vcpu.regs.rbp) = (7, 8, 9);
    let rsp = vcpu.regs.rsp;
    assert_eq!(
        rig.engine.on_hit(&mut vcpu, at).expect("handled"),
        HitOutcome::Resume
    );

    assert_eq!((vcpu.regs.rip, vcpu.regs.rsp), (at.0 + 1, rsp - 8));
    assert_eq!(rig.word(rsp - 8), 9, "the push has taken place");
    let hits = rig.hits();
    assert_eq!(hits.len(), 1);
    assert_eq!(
        (&*hits[0].probe, &*hits[0].symbol),
        ("kprobe:plain", "plain+0x0")
    );
    assert_eq!((hits[0].vcpu, hits[0].ip), (3, Hex(at.0)));
    assert_eq!((hits[0].regs.rsp, hits[0].regs.rip), (Hex(rsp), Hex(at.0)));
    assert_eq!(hits[0].args[..2], [Hex(7), Hex(8)]);
    let probe = rig.probe(0);
    assert_eq!(
        (probe.hits, probe.exits, probe.tier),
        (1, 1, Some(Tier::Emulated))
    );
}

/// A port write that has moved RIP on is no different.
#[test]
fn where_rip_is_does_not_matter() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    let mut vcpu = vcpu(at.wrapping_add(1));
    rig.engine.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!(vcpu.regs.rip, at.0 + 1);
    assert_eq!(rig.hits()[0].regs.rip, Hex(at.0));
}

#[test]
fn everybody_who_asked_for_a_place_is_told_in_order() {
    let (kernel, at) = one("plain", &PLAIN);
    let address = format!("kprobe:{at}");
    let rig = Rig::new(&kernel, &["kprobe:plain", &address, "kprobe:plain+0x1"]);
    rig.engine.on_hit(&mut vcpu(at), at).expect("handled");
    let told: Vec<_> = rig.hits().iter().map(|hit| hit.probe.to_string()).collect();
    assert_eq!(told, ["kprobe:plain", &address]);
    assert_eq!([0, 1, 2].map(|probe| rig.probe(probe).hits), [1, 1, 0]);
}

#[test]
fn a_hit_behind_an_ftrace_call_is_about_the_call() {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("traced", &[&[0xe8, 0, 0x10, 0, 0], &PLAIN[..]].concat());
    kernel.ftrace_calls(&[at]);
    let rig = Rig::new(&kernel, &["kprobe:traced", "kprobe:traced+0x5"]);
    let behind = at.wrapping_add(5);
    assert_ne!(
        rig.seen(at),
        PlantByte::Port.value(),
        "the kernel looks at its call"
    );
    rig.engine
        .on_hit(&mut vcpu(behind), behind)
        .expect("handled");
    let ips: Vec<_> = rig
        .hits()
        .iter()
        .map(|hit| (hit.ip, hit.regs.rip))
        .collect();
    assert_eq!(
        ips,
        [(Hex(at.0), Hex(at.0)), (Hex(behind.0), Hex(behind.0))]
    );
}

#[test]
fn what_is_not_planted_is_not_ours() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    let unmapped = Gva(at.0 + 0x4000_0000);
    // Another place, the same offset in another page, and the same offset where nothing is mapped.
    for rip in [at.wrapping_add(1), at.wrapping_add(0x1000), unmapped] {
        let mut vcpu = vcpu(rip);
        let before = vcpu.regs;
        assert_eq!(
            rig.engine.on_hit(&mut vcpu, rip).expect("handled"),
            HitOutcome::NotOurs
        );
        assert_eq!(vcpu.regs, before);
    }
    assert_eq!((rig.probe(0).hits, rig.hits().len()), (0, 0));
}

/// A kernel's first code runs where it is loaded.
#[test]
fn another_mapping_of_the_plant_is_a_hit_too() {
    // lea rax, [rip + 0x10]; ret
    let (kernel, at) = one("relative", &[0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3]);
    let rig = Rig::new(&kernel, &["kprobe:relative"]);
    let alias = Gva(gpa(at));
    let mut vcpu = vcpu(alias);
    assert_eq!(
        rig.engine.on_hit(&mut vcpu, alias).expect("handled"),
        HitOutcome::Resume
    );
    assert_eq!(
        (vcpu.regs.rip, vcpu.regs.rax),
        (alias.0 + 7, alias.0 + 7 + 0x10)
    );
    assert_eq!(
        rig.hits()[0].ip,
        Hex(at.0),
        "told by the address that the user knows"
    );
}

#[test]
fn a_breakpoint_of_the_guests_own_under_the_plant_is_given_to_it() {
    let (kernel, at) = one("breaks", &[0xcc, 0xc3]);
    let mut abilities = super::ABILITIES;
    for plant in [PlantByte::Port, PlantByte::Int3] {
        abilities.plant = plant;
        let rig = Rig::with(&kernel, &["kprobe:breaks"], abilities);
        let mut vcpu = vcpu(at);
        vcpu.regs.rflags |= RESUME_FLAG;
        assert_eq!(
            rig.engine.on_hit(&mut vcpu, at).expect("handled"),
            HitOutcome::Resume
        );
        assert_eq!(vcpu.injected, [Injected::Breakpoint(at)]);
        // The frame of #BP keeps no debug register from firing where its handler returns to.
        assert_eq!(vcpu.regs.rflags & RESUME_FLAG, 0);
        assert_eq!(rig.probe(0).hits, 1);
    }
}

/// Where an int3 exits, the guest's own has to: VT-x injects #BP with the length that it remembers from there.
#[test]
fn a_breakpoint_that_exits_is_executed_in_place() {
    let (kernel, at) = one("breaks", &[0xcc, 0xc3]);
    let abilities = Abilities {
        int3_exits: true,
        ..super::ABILITIES
    };
    let rig = Rig::with(&kernel, &["kprobe:breaks"], abilities);
    let mut vcpu = vcpu(at);
    assert_eq!(
        rig.engine.on_hit(&mut vcpu, at).expect("handled"),
        HitOutcome::NeedsPause
    );
    let mut shown = 0;
    let outcome = rig
        .engine
        .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| {
            shown = rig.seen(at);
            Ok(Ran::Nowhere)
        });
    assert_eq!(
        (outcome.expect("handled"), shown),
        (HitOutcome::Resume, 0xcc)
    );
    assert_eq!((rig.probe(0).hits, rig.seen(at)), (1, 0xee));
}

/// Another thread has disarmed the probe while the vCPU waited for its turn.
#[test]
fn a_plant_that_went_meanwhile_lets_the_vcpu_run_on() {
    let (kernel, at) = one("reads_time", &RDTSC);
    let rig = Rig::new(&kernel, &["kprobe:reads_time"]);
    let mut vcpu = vcpu(at.wrapping_add(1));
    assert_eq!(
        rig.engine.on_hit(&mut vcpu, at).expect("handled"),
        HitOutcome::NeedsPause
    );
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    let outcome = rig
        .engine
        .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("nothing to run"));
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    assert_eq!(
        vcpu.regs.rip, at.0,
        "it executes the guest's own instruction"
    );
    assert_eq!((rig.probe(0).hits, rig.seen(at)), (1, RDTSC[0]));
}

/// A hit that has been counted and waits for its turn, while plants go, and come back before the vCPU has run on.
#[test]
fn a_plant_that_comes_back_counts_nobody_twice() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &[]);
    rig.engine.set_optimising(&rig.paused, true).expect("set");
    let counted = NewProbe {
        action: Action::Count,
        ..NewProbe::from("kprobe:plain".parse::<ProbeSpec>().expect("a probe"))
    };
    rig.engine
        .register(&rig.paused, &[counted])
        .expect("registered");
    let mut vcpu = vcpu(at);
    let outcome = rig.engine.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!(outcome, HitOutcome::NeedsPause);
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    rig.engine
        .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("nothing to run"))
        .expect("handled");
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    assert_eq!(vcpu.regs.rip, at.0 + 1, "behind it");
    assert_eq!(vcpu.regs.rsp, STACK - 8, "executed");
    assert_eq!((rig.probe(0).hits, rig.seen(at)), (1, 0xee));
}

/// Whichever request about the vCPU fails, the hit fails, and registers are as they were.
#[test]
fn errors_of_the_vcpu_are_told() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    let mut failures = 0;
    loop {
        let mut vcpu = vcpu(at);
        let before = vcpu.regs;
        vcpu.requests.fail_from(failures + 1);
        match rig.engine.on_hit(&mut vcpu, at) {
            Ok(outcome) => {
                assert_eq!(outcome, HitOutcome::Resume);
                assert_eq!(vcpu.regs.rip, at.0 + 1);
                break;
            }
            Err(GuestError::Injected(_)) => assert_eq!(vcpu.regs, before),
            Err(other) => panic!("{other}"),
        }
        failures += 1;
    }
    assert_eq!(
        failures, 5,
        "registers twice, the system's state, what holds interrupts back, registers set"
    );
}

#[test]
fn plants_are_where_the_kernel_is() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    assert_eq!(at, TEXT);
    assert_eq!(rig.paused.read_only(), [(TEXT_GPA, TEXT_GPA + 0x1000)]);
}
