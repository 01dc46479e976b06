//! Hits: the plant that is hit, and the probes that receive the hit.

use address::{Gpa, Gva};
use events::{Hex, Tier};
use manifest::{Action, ProbeConfig, ProbeSpec};
use text::testing::{FakeVcpu, Injected};
use text::{GuestError, PlantByte, Ran, Written};

use super::{PLAIN, RDTSC, RESUME_FLAG, Rig, STACK, TEXT_GPA, gpa, one, vcpu};
use crate::Abilities;
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::{SyntheticKernel, TEXT};

#[test]
fn hit_is_counted_and_emitted_with_the_registers_before_the_instruction() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    assert_eq!(rig.seen(at), PlantByte::Port.value());
    let mut vcpu = vcpu(at);
    vcpu.index = 3;
    (vcpu.regs.rdi, vcpu.regs.rsi, vcpu.regs.rbp) = (7, 8, 9);
    let rsp = vcpu.regs.rsp;
    assert_eq!(
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled"),
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

/// RIP may be behind the plant, if the plant is a port write.
#[test]
fn where_rip_is_does_not_matter() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    let mut vcpu = vcpu(at.wrapping_add(1));
    rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!(vcpu.regs.rip, at.0 + 1);
    assert_eq!(rig.hits()[0].regs.rip, Hex(at.0));
}

#[test]
fn probes_at_one_site_emit_hits_in_order() {
    let (kernel, at) = one("plain", &PLAIN);
    let address = format!("kprobe:{at}");
    let rig = Rig::new(&kernel, &["kprobe:plain", &address, "kprobe:plain+0x1"]);
    rig.engine.hits.on_hit(&mut vcpu(at), at).expect("handled");
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
        .hits
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
fn address_without_a_plant_is_not_ours() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    let unmapped = Gva(at.0 + 0x4000_0000);
    // Another place, the same offset in another page, and the same offset where nothing is mapped.
    for rip in [at.wrapping_add(1), at.wrapping_add(0x1000), unmapped] {
        let mut vcpu = vcpu(rip);
        let before = vcpu.regs;
        assert_eq!(
            rig.engine.hits.on_hit(&mut vcpu, rip).expect("handled"),
            HitOutcome::NotOurs
        );
        assert_eq!(vcpu.regs, before);
    }
    assert_eq!((rig.probe(0).hits, rig.hits().len()), (0, 0));
}

/// A kernel's first code runs at the load address.
#[test]
fn another_mapping_of_the_plant_is_a_hit_too() {
    // lea rax, [rip + 0x10]; ret
    let (kernel, at) = one("relative", &[0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3]);
    let rig = Rig::new(&kernel, &["kprobe:relative"]);
    let alias = Gva(gpa(at));
    let mut vcpu = vcpu(alias);
    assert_eq!(
        rig.engine.hits.on_hit(&mut vcpu, alias).expect("handled"),
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

/// `nop; ret`, and then the guest puts an `int3` over the `nop`.
fn with_written_breakpoint(abilities: Abilities) -> (Rig, Gva) {
    let (kernel, at) = one("breaks", &[0x90, 0xc3]);
    let rig = Rig::with(&kernel, &["kprobe:breaks"], abilities);
    let written = rig.engine.writes.on_guest_write(Gpa(gpa(at)), &[0xcc]);
    assert_eq!(written.expect("written"), Written::Merged);
    (rig, at)
}

#[test]
fn breakpoint_that_the_guest_has_written_under_a_plant_is_injected() {
    for plant in [PlantByte::Port, PlantByte::Int3] {
        let abilities = Abilities {
            plant,
            ..super::ABILITIES
        };
        let (rig, at) = with_written_breakpoint(abilities);
        let mut vcpu = vcpu(at);
        vcpu.regs.rflags |= RESUME_FLAG;
        assert_eq!(
            rig.engine.hits.on_hit(&mut vcpu, at).expect("handled"),
            HitOutcome::Resume
        );
        assert_eq!(vcpu.injected, [Injected::Breakpoint(at)]);
        // The frame of #BP keeps no debug register from firing where its handler returns to.
        assert_eq!(vcpu.regs.rflags & RESUME_FLAG, 0);
        assert_eq!(rig.probe(0).hits, 1);
    }
}

/// If `int3` exits, the guest's own `int3` must exit, too: VT-x injects #BP with the instruction length stored at the exit.
#[test]
fn breakpoint_that_exits_is_executed_in_place() {
    let (rig, at) = with_written_breakpoint(Abilities {
        int3_exits: true,
        ..super::ABILITIES
    });
    let mut vcpu = vcpu(at);
    assert_eq!(runs_in_place(&rig, &mut vcpu, at), 0xcc);
    assert_eq!((rig.probe(0).hits, rig.seen(at)), (1, 0xee));
}

/// The byte in memory at `at` while the vCPU executes the instruction there.
fn runs_in_place(rig: &Rig, vcpu: &mut FakeVcpu, at: Gva) -> u8 {
    assert_eq!(
        rig.engine.hits.on_hit(vcpu, at).expect("handled"),
        HitOutcome::NeedsPause
    );
    let mut shown = 0;
    let outcome = rig
        .engine
        .paused_hits
        .on_paused_hit(vcpu, &rig.paused, at, |_, _| {
            shown = rig.seen(at);
            Ok(Ran::Nowhere)
        });
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    assert!(vcpu.injected.is_empty());
    shown
}

/// Linux's #BP handler reads the byte at the address of the `int3`, and returns to the address if the byte is not `int3`. With the plant
/// there, the loop would never end.
#[test]
fn breakpoint_that_the_kernel_was_built_with_shows_until_it_is_executed_again() {
    for int3_exits in [false, true] {
        let (kernel, at) = one("breaks", &[0xcc, 0xc3]);
        let abilities = Abilities {
            int3_exits,
            ..super::ABILITIES
        };
        let rig = Rig::with(&kernel, &["kprobe:breaks"], abilities);
        for hits in 1..4 {
            let mut vcpu = vcpu(at);
            assert_eq!(rig.seen(at), 0xee);
            assert_eq!(runs_in_place(&rig, &mut vcpu, at), 0xcc);
            assert_eq!((rig.probe(0).hits, rig.seen(at)), (hits, 0xcc));
            assert_eq!(rig.paused.breakpoints()[0], Some(at));
            // The next execution of it: the plant returns, and is hit.
            let on = rig.engine.hits.on_debug_hit(&mut vcpu, 1, at);
            assert_eq!(on.expect("handled"), HitOutcome::NeedsPause);
            rig.engine
                .paused_hits
                .on_paused_debug_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("it is hit"))
                .expect("handled");
        }
        assert_eq!(rig.probe(0).missed.len(), 0);
    }
}

/// The plant of a breakpoint that has been read returns when another site needs the debug register.
#[test]
fn five_built_in_breakpoints_share_four_debug_registers() {
    let (kernel, at) = one("breaks", &[0xcc; 6]);
    let names = [0, 1, 2, 3, 4].map(|offset| format!("kprobe:breaks+{offset}"));
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let rig = Rig::new(&kernel, &names);
    for offset in 0..5 {
        let at = at.wrapping_add(offset);
        assert_eq!(runs_in_place(&rig, &mut vcpu(at), at), 0xcc);
    }
    let shown = [0, 1, 2, 3, 4].map(|offset| rig.seen(at.wrapping_add(offset)));
    assert_eq!(shown, [0xee, 0xcc, 0xcc, 0xcc, 0xcc]);
    assert!((0..5).all(|index| rig.probe(index).missed.is_empty()));
}

/// Without debug registers, the guest still continues, and the probe counts unseen executions as missed.
#[test]
fn built_in_breakpoint_without_a_debug_register_counts_as_missed() {
    let (kernel, at) = one("breaks", &[0xcc, 0xc3]);
    let abilities = Abilities {
        debug_execute: false,
        ..super::ABILITIES
    };
    let rig = Rig::with(&kernel, &["kprobe:breaks"], abilities);
    assert_eq!(runs_in_place(&rig, &mut vcpu(at), at), 0xcc);
    assert_eq!((rig.probe(0).hits, rig.seen(at)), (1, 0xcc));
    assert_eq!(rig.probe(0).missed.get("unwatched"), Some(&1));
}

/// An `int3` plant looks like the kernel's own `int3`.
#[test]
fn built_in_breakpoint_under_an_int3_plant_is_injected() {
    let (kernel, at) = one("breaks", &[0xcc, 0xc3]);
    let abilities = Abilities {
        plant: PlantByte::Int3,
        ..super::ABILITIES
    };
    let rig = Rig::with(&kernel, &["kprobe:breaks"], abilities);
    let mut vcpu = vcpu(at);
    let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!(outcome, HitOutcome::Resume);
    assert_eq!(vcpu.injected, [Injected::Breakpoint(at)]);
}

/// Another thread has disarmed the probe while the vCPU waited for its turn.
#[test]
fn vcpu_resumes_if_its_plant_has_gone_meanwhile() {
    let (kernel, at) = one("reads_time", &RDTSC);
    let rig = Rig::new(&kernel, &["kprobe:reads_time"]);
    let mut vcpu = vcpu(at.wrapping_add(1));
    assert_eq!(
        rig.engine.hits.on_hit(&mut vcpu, at).expect("handled"),
        HitOutcome::NeedsPause
    );
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    let outcome = rig
        .engine
        .paused_hits
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
fn plant_that_comes_back_counts_no_hit_twice() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &[]);
    rig.engine.set_optimising(&rig.paused, true).expect("set");
    let counted = ProbeConfig {
        action: Action::Count,
        ..ProbeConfig::from("kprobe:plain".parse::<ProbeSpec>().expect("a probe"))
    };
    rig.engine
        .register(&rig.paused, &[counted])
        .expect("registered");
    let mut vcpu = vcpu(at);
    let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!(outcome, HitOutcome::NeedsPause);
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("nothing to run"))
        .expect("handled");
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    assert_eq!(vcpu.regs.rip, at.0 + 1, "behind it");
    assert_eq!(vcpu.regs.rsp, STACK - 8, "executed");
    assert_eq!((rig.probe(0).hits, rig.seen(at)), (1, 0xee));
}

/// Whichever request about the vCPU fails, the hit fails, and registers are as they were.
#[test]
fn vcpu_errors_fail_the_hit() {
    let (kernel, at) = one("plain", &PLAIN);
    let rig = Rig::new(&kernel, &["kprobe:plain"]);
    let mut failures = 0;
    loop {
        let mut vcpu = vcpu(at);
        let before = vcpu.regs;
        vcpu.requests.fail_from(failures + 1);
        match rig.engine.hits.on_hit(&mut vcpu, at) {
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

/// KVM exits for an `outs` with RIP behind it, and for an `out` with RIP at it.
#[test]
fn outs_in_front_of_a_plant_is_no_hit() {
    let mut kernel = SyntheticKernel::new();
    let mut code = vec![0x6e];
    code.extend(PLAIN);
    let at = kernel.function("written", &code).wrapping_add(1);
    let rig = Rig::new(&kernel, &["kprobe:written+0x1"]);
    let mut vcpu = vcpu(at);
    vcpu.behind_outs = true;
    let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!((outcome, vcpu.regs.rip), (HitOutcome::NotOurs, at.0));
    assert_eq!(rig.probe(0).hits, 0);
    vcpu.behind_outs = false;
    let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
    assert_eq!((outcome, rig.probe(0).hits), (HitOutcome::Resume, 1));
}
