//! The hits equal the guest's own counts, on every stock kernel, with one vCPU and with two.

use events::ProbeState;
use manifest::GuestEnd;

use crate::boot::{Boot, Ran, Stock, probe};

/// The work of each process of the workload, with a process per vCPU.
const WORKLOAD: &str = "opens=40 reads=31 getpids=23";

/// The boot-time self-test with an `int3` of the kernel's own; if the self-test is inlined, the function with the inlined code.
fn breakpoint_test(stock: &Stock) -> &'static str {
    ["kprobe:int3_selftest", "kprobe:alternative_instructions"]
        .into_iter()
        .find(|probe| stock.has(probe.trim_start_matches("kprobe:")))
        .expect("every kernel has alternatives")
}

fn check(image: &str, cpus: u8) {
    let stock = Stock::fetch(image);
    let self_test = breakpoint_test(&stock);
    let ran = Boot::new(&stock, WORKLOAD)
        .cpus(cpus)
        .probe("kprobe:do_sys_openat2")
        .probe("kprobe:ksys_read")
        .probe("kprobe:__x64_sys_getpid")
        .probe(self_test)
        .run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let (summary, counts) = (ran.summary(), ran.counts());
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    assert!(counts.openat >= 40 * u64::from(cpus), "{counts:?}");
    for (name, made) in [
        ("kprobe:do_sys_openat2", counts.openat),
        ("kprobe:ksys_read", counts.read),
        ("kprobe:__x64_sys_getpid", counts.getpid),
    ] {
        let probe = probe(&summary, name);
        assert_eq!(probe.hits, made, "{image}, {cpus} vCPUs: {name}");
        assert_eq!(probe.state, ProbeState::Armed);
        assert!(probe.missed.is_empty());
    }
    let self_test = probe(&summary, self_test);
    assert_eq!((self_test.hits, self_test.state), (1, ProbeState::Gone));
    assert_hits_are_emitted(&ran, cpus);
}

/// Every hit is a line, in the order in which they happened on each vCPU, and each vCPU has some.
fn assert_hits_are_emitted(ran: &Ran, cpus: u8) {
    let hits = ran.hits();
    for probe in &ran.summary().probes {
        let told: Vec<_> = hits
            .iter()
            .filter(|hit| *hit.probe == *probe.probe)
            .collect();
        assert_eq!(told.len() as u64, probe.hits, "lines of {}", probe.probe);
        assert!(told.iter().all(|hit| Some(hit.ip) == probe.ip));
    }
    for vcpu in 0..usize::from(cpus) {
        let on_it = || hits.iter().filter(move |hit| hit.vcpu == vcpu);
        assert!(on_it().is_sorted_by_key(|hit| hit.ts_ns));
        assert!(
            on_it().any(|hit| &*hit.probe == "kprobe:do_sys_openat2"),
            "vCPU {vcpu} opens files"
        );
    }
}

#[test]
fn debian_5_10_counts_with_one_vcpu() {
    check("debian-5.10", 1);
}

#[test]
fn debian_5_10_counts_with_two_vcpus() {
    check("debian-5.10", 2);
}

#[test]
fn debian_6_1_counts_with_one_vcpu() {
    check("debian-6.1", 1);
}

#[test]
fn debian_6_1_counts_with_two_vcpus() {
    check("debian-6.1", 2);
}

#[test]
fn debian_6_12_counts_with_one_vcpu() {
    check("debian-6.12", 1);
}

#[test]
fn debian_6_12_counts_with_two_vcpus() {
    check("debian-6.12", 2);
}

#[test]
fn debian_sid_counts_with_one_vcpu() {
    check("debian-sid", 1);
}

#[test]
fn debian_sid_counts_with_two_vcpus() {
    check("debian-sid", 2);
}
