//! Every scenario of the test guest with a probe at every function: the guest finds nothing wrong, and counts what
//! the probes count.

use probes::{ProbeState, Tier};

use crate::guest::{Guest, Ran, kernel, plant_bytes};

/// Runs `scenario` with each byte that can be planted here.
fn with_each_plant(scenario: &str, cpus: u8, check: impl Fn(&Ran)) {
    for plant in plant_bytes() {
        println!("{scenario} with {plant:?}");
        let ran = Guest::new(&format!("run={scenario}"))
            .cpus(cpus)
            .plant(plant)
            .run();
        ran.assert_good();
        check(&ran);
    }
}

#[test]
fn every_kind_of_first_instruction_is_passed() {
    with_each_plant("calls=20", 1, |ran| {
        ran.assert_counts(&[]);
        // The functions of the scenario were all hit, and the way past each is told.
        let hit: Vec<_> = ran
            .summary
            .probes
            .iter()
            .filter(|probe| probe.hits > 0)
            .collect();
        assert!(hit.len() >= 35, "{} functions hit", hit.len());
        for probe in hit {
            let exits = match probe.tier {
                Some(Tier::Emulated | Tier::Relocated) => probe.hits..=probe.hits,
                // Or some of them: a repeated store is emulated if it goes upwards.
                Some(Tier::Stepped) => probe.hits + 1..=2 * probe.hits,
                other => panic!("{}: {other:?}", probe.probe),
            };
            assert!(exits.contains(&probe.exits), "{probe:?}");
            assert_eq!(probe.state, ProbeState::Armed);
            assert!(probe.missed.is_empty());
        }
        // A port write of the guest's own is made for it.
        let out = ran.probe("kprobe:fn_out");
        assert_eq!((out.tier, out.exits), (Some(Tier::Emulated), out.hits));
        assert_eq!(ran.probe("kprobe:fn_push").tier, Some(Tier::Emulated));
    });
}

#[test]
fn a_function_may_hit_inside_itself() {
    with_each_plant("recurse=50", 1, |ran| {
        ran.assert_counts(&[]);
        assert_eq!(ran.hits("fn_recurse"), 51);
        // The argument tells the depth, so none was lost or told twice.
        let depths: Vec<u64> = ran
            .observer
            .hits()
            .iter()
            .map(|hit| hit.args[0].0)
            .collect();
        assert_eq!(depths, (0..=50).rev().collect::<Vec<_>>());
    });
}

#[test]
fn a_function_that_looks_at_its_flags_sees_its_own() {
    with_each_plant("flags=16", 1, |ran| {
        ran.assert_counts(&[]);
        assert_eq!(ran.hits("fn_pushf"), 16);
    });
}

#[test]
fn text_that_the_guest_rewrites_runs_as_rewritten() {
    with_each_plant("selfpatch=3", 1, |ran| {
        ran.assert_counts(&[]);
        assert_eq!(ran.hits("fn_patched"), 90);
    });
}

#[test]
fn a_breakpoint_of_the_guests_own_reaches_it() {
    with_each_plant("int3=5", 1, |ran| {
        // The label behind the breakpoint is matched too.
        ran.assert_counts(&[("fn_int3_next", 5)]);
        assert_eq!(ran.hits("fn_int3"), 5);
    });
}

#[test]
fn a_breakpoint_of_the_guests_own_that_nobody_probes_reaches_it() {
    for plant in plant_bytes() {
        let ran = Guest::new("run=int3=5,ring3=3")
            .probes(["kprobe:fn_nop"])
            .plant(plant)
            .run();
        ran.assert_good();
    }
}

#[test]
fn a_probed_instruction_that_faults_is_retried() {
    with_each_plant("fault=7", 1, |ran| ran.assert_counts(&[("fn_fault", 7)]));
}

#[test]
fn ring_3_runs_beside_probes_of_ring_0() {
    for plant in plant_bytes() {
        let ran = Guest::new("run=ring3=4,calls=2").plant(plant).run();
        ran.assert_good();
        ran.assert_counts(&[]);
        assert_eq!(ran.outcome.counts["user_int3"], 4);
    }
}

/// Each instruction of a function, as a probe and in words.
fn each_instruction(function: &str) -> Vec<(String, String)> {
    let kernel = kernel();
    let symbol = kernel.symbols().matching(function).next();
    let symbol = symbol.expect("the test guest has it");
    let probe = |offset: u64| match offset {
        0 => format!("kprobe:{function}"),
        _ => format!("kprobe:{function}+{offset:#x}"),
    };
    kernel
        .instructions(&symbol)
        .map(|decoded| decoded.expect("an instruction"))
        .map(|decoded| (probe(decoded.at().0 - symbol.address.0), decoded.text()))
        // Of the symbol, the padding behind it is a part.
        .filter(|(_, text)| !text.starts_with("nop"))
        .collect()
}

#[test]
fn no_wake_up_and_no_nmi_is_lost() {
    const WAKES: u64 = 1000;
    let probed: Vec<_> = ["fn_wait", "fn_wake", "fn_nmi"]
        .into_iter()
        .flat_map(each_instruction)
        .collect();
    for plant in plant_bytes() {
        let ran = Guest::new(&format!("run=wait={WAKES},nmi=20"))
            .probes(probed.iter().map(|(probe, _)| probe.as_str()))
            .plant(plant)
            .run();
        ran.assert_good();
        assert_eq!(ran.outcome.passed.len(), 2);
        for (probe, text) in &probed {
            let summary = ran.probe(probe);
            let expected = if probe.contains("fn_nmi") { 40 } else { WAKES };
            assert_eq!(summary.hits, expected, "{probe}: {text}");
            if ["sti", "hlt", "iretq"].contains(&text.as_str()) {
                assert_eq!(summary.tier, Some(Tier::Emulated), "{probe}: {text}");
                assert_eq!(summary.exits, summary.hits, "{probe}: {text}");
            }
        }
    }
}

#[test]
fn two_vcpus_hit_the_same_probes() {
    const ROUNDS: u64 = 60;
    with_each_plant(&format!("smp={ROUNDS}"), 2, |ran| {
        ran.assert_counts(&[]);
        for vcpu in 0..2 {
            let hits = ran.observer.hits();
            let of = |function: &str| {
                let name = format!("kprobe:{function}");
                hits.iter()
                    .filter(|hit| hit.vcpu == vcpu && *hit.probe == *name)
                    .count() as u64
            };
            for function in ["fn_nop", "fn_ret", "fn_lock", "fn_gs", "fn_out", "fn_rep"] {
                assert_eq!(of(function), ROUNDS, "{function} on vCPU {vcpu}");
            }
            assert_eq!(of("fn_callee"), 2 * ROUNDS);
        }
    });
}

#[test]
fn the_write_of_a_reported_register_takes_place() {
    with_each_plant("msr,calls=1", 1, |ran| ran.assert_counts(&[]));
}

#[test]
fn all_of_them_in_one_run() {
    let scenarios = "calls=5,recurse=9,flags,selfpatch,int3,fault=3,ring3,msr,smp=20,calls=5";
    with_each_plant(scenarios, 2, |ran| {
        ran.assert_counts(&[("fn_fault", 3), ("fn_int3_next", 3)]);
        assert_eq!(ran.outcome.passed.len(), 10);
    });
}

#[test]
fn a_hit_shows_the_registers_of_the_probed_instruction() {
    let ran = Guest::new("run=recurse=3")
        .probes(["kprobe:fn_recurse+0x4"])
        .run();
    ran.assert_good();
    let hits = ran.observer.hits();
    assert_eq!(hits.len(), 4);
    for (hit, depth) in hits.iter().zip([3, 2, 1, 0]) {
        assert_eq!(&*hit.symbol, "fn_recurse+0x4");
        assert_eq!(hit.regs.rip, hit.ip);
        // The instruction before it has copied the stack pointer.
        assert_eq!(hit.regs.rbp, hit.regs.rsp);
        assert_eq!(hit.regs.rdi.0, depth);
        assert_eq!(hit.args[0].0, depth);
    }
    assert!(hits.is_sorted_by_key(|hit| hit.ts_ns));
    // Deeper is lower.
    assert!(hits.is_sorted_by_key(|hit| std::cmp::Reverse(hit.regs.rsp.0)));
}
