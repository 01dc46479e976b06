//! Runs a scenario of the test guest with a probe at every function: the guest finds no error, and counts as many calls as the probes.

use events::{ProbeState, Tier};

use super::bench::Here;
use super::case::{Case, Plants};
use super::guest::Ran;

pub(super) const CASES: [Case; 14] = [
    Case::new("unprobed", Plants::Nothing, &[2], |here| {
        let scenarios =
            "checksum,calls=5,recurse=9,flags,selfpatch,int3,fault=3,ring3,msr,smp=20,checksum";
        here.guest(&format!("run={scenarios}"))
            .with([])
            .run()
            .assert_good();
    }),
    Case::new("recurse", Plants::Each, &[1], |here| {
        let ran = count(here, "recurse=50", &[]);
        assert_eq!(ran.hits("fn_recurse"), 51);
        // The argument is the depth: no call was lost or reported twice.
        assert_eq!(ran.first_arguments(), (0..=50).rev().collect::<Vec<_>>());
    }),
    Case::new("calls", Plants::Each, &[1, 2], |here| {
        // The functions of the scenario were all hit.
        let ran = count(here, "calls=20", &[]);
        let hit = ran.summary.probes.iter().filter(|probe| probe.hits > 0);
        assert!(hit.count() >= 35);
        for probe in &ran.summary.probes {
            assert_eq!(probe.state, ProbeState::Armed, "{probe:?}");
        }
    }),
    Case::new("exits", Plants::Bytes, &[1], one_exit_a_hit),
    Case::new("flags", Plants::Each, &[1], |here| {
        let ran = count(here, "flags=16", &[]);
        assert_eq!(ran.hits("fn_pushf"), 16);
    }),
    Case::new("selfpatch", Plants::Each, &[1], |here| {
        let ran = count(here, "selfpatch=3", &[]);
        assert_eq!(ran.hits("fn_patched"), 90);
    }),
    Case::new("int3", Plants::Each, &[1], |here| {
        // The label behind the breakpoint is matched too.
        let ran = count(here, "int3=5", &[("fn_int3_next", 5)]);
        assert_eq!(ran.hits("fn_int3"), 5);
    }),
    Case::new("own-int3", Plants::Each, &[1], |here| {
        // The guest's own breakpoints, without a probe.
        here.guest("run=int3=5,ring3=3")
            .probes(["kprobe:fn_nop"])
            .run()
            .assert_good();
    }),
    Case::new("fault", Plants::Each, &[1], |here| {
        // The guest executes a faulting instruction again.
        count(here, "fault=7", &[("fn_fault", 7)]);
    }),
    Case::new("ring3", Plants::Each, &[1], |here| {
        let ran = count(here, "ring3=4,calls=2", &[]);
        assert_eq!(ran.counted("user_int3"), 4);
    }),
    Case::new("syscall", Plants::Each, &[1], |here| {
        let ran = count(here, "syscall=6,calls=2", &[]);
        assert_eq!(ran.hits("fn_syscall"), 6);
    }),
    Case::new("msr", Plants::Each, &[1], |here| {
        count(here, "msr,calls=1", &[]);
    }),
    Case::new("smp", Plants::Each, &[2], two_vcpus),
    Case::new("all", Plants::Each, &[2], |here| {
        // Without the page faults, whose address is wrong in the SVM of Bochs: the case `fault` has them.
        let scenarios = "calls=5,recurse=9,flags,selfpatch,int3,ring3,msr,smp=20,calls=5";
        let ran = count(here, scenarios, &[("fn_int3_next", 3)]);
        assert_eq!(ran.outcome.passed.len(), 9);
    }),
];

fn count(here: &Here<'_>, scenarios: &str, extra: &[(&str, u64)]) -> Ran {
    let ran = here.guest(&format!("run={scenarios}")).run();
    ran.assert_good();
    ran.assert_counts(extra);
    ran
}

/// A hit of an emulated or relocated instruction takes the plant's exit and no other.
fn one_exit_a_hit(here: &Here<'_>) {
    let ran = here.guest("run=calls=20").without_jumps().run();
    ran.assert_good();
    ran.assert_counts(&[]);
    let mut once = 0;
    for probe in ran.summary.probes.iter().filter(|probe| probe.hits > 0) {
        match probe.tier {
            Some(Tier::Emulated | Tier::Relocated) => {
                assert_eq!(probe.exits, probe.hits, "{probe:?}");
                once += 1;
            }
            Some(_) => assert!(probe.exits > probe.hits, "{probe:?}"),
            None => panic!("nobody knows how they got past: {probe:?}"),
        }
    }
    assert!(once >= 30, "one exit a hit at {once} functions only");
    // The engine emulates the guest's own port write.
    let out = ran.probe("kprobe:fn_out");
    assert_eq!((out.tier, out.exits), (Some(Tier::Emulated), out.hits));
    assert_eq!(ran.probe("kprobe:fn_push").tier, Some(Tier::Emulated));
}

fn two_vcpus(here: &Here<'_>) {
    const ROUNDS: u64 = 60;
    let ran = count(here, &format!("smp={ROUNDS}"), &[]);
    let hits = ran.observer.hits();
    for vcpu in 0..2 {
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
}
