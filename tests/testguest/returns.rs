//! Return probes: every call is followed to its return, or counted as missed by reason.

use crate::guest::{Guest, Ran, plant_bytes};

fn missed(ran: &Ran, probe: &str) -> u64 {
    ran.probe(probe).missed.values().sum()
}

/// Entries are what the guest counted; each has returned, is in flight, or was missed.
fn assert_followed(ran: &Ran) {
    let mut compared = 0;
    for probe in &ran.summary.probes {
        let Some(function) = probe.probe.strip_prefix("kretprobe:") else {
            continue;
        };
        let counted = ran.outcome.counts.get(function).copied().unwrap_or(0);
        assert_eq!(probe.hits, counted, "entries of {function}");
        let returns = probe.returns.expect("a return probe");
        let in_flight = probe.in_flight.expect("a return probe");
        assert_eq!(
            probe.hits,
            returns + in_flight + missed(ran, &probe.probe),
            "{probe:?}"
        );
        let told = ran
            .observer
            .returns()
            .iter()
            .filter(|told| *told.probe == *probe.probe)
            .count();
        assert_eq!(told as u64, returns, "told returns of {function}");
        compared += u64::from(counted > 0);
    }
    assert!(compared > 0, "no function was entered");
}

#[test]
fn every_kind_of_function_is_followed() {
    for plant in plant_bytes() {
        let ran = Guest::new("run=calls=10")
            .probes(["kretprobe:fn_*"])
            .plant(plant)
            .run();
        ran.assert_good();
        assert_followed(&ran);
        for function in ["fn_push", "fn_call", "fn_tail", "fn_tail_target", "fn_ret"] {
            let probe = ran.probe(&format!("kretprobe:{function}"));
            assert_eq!(probe.returns, Some(10), "{probe:?}");
            assert!(probe.missed.is_empty(), "{probe:?}");
        }
        // Its first instruction is the target of its own jump: two of three entries are none of a call, and the calls
        // that they stand for never return.
        let looping = ran.probe("kretprobe:fn_loop");
        assert_eq!((looping.hits, looping.returns), (30, Some(10)));
        assert_eq!(looping.missed.get("abandoned"), Some(&20));
    }
}

#[test]
fn recursion_returns_once_for_each_entry() {
    let ran = Guest::new("run=recurse=100")
        .probes(["kretprobe:fn_recurse"])
        .run();
    ran.assert_good();
    assert_followed(&ran);
    assert_eq!(ran.probe("kretprobe:fn_recurse").returns, Some(101));
}

#[test]
fn two_vcpus_follow_the_same_functions() {
    let ran = Guest::new("run=smp=20")
        .cpus(2)
        .probes(["kretprobe:fn_*", "kprobe:fn_*"])
        .run();
    ran.assert_good();
    assert_followed(&ran);
    assert_eq!(ran.probe("kretprobe:fn_push").returns, Some(40));
}
