//! Calls that return to instructions patched by the kernel: jump labels and static calls.

use manifest::GuestEnd;

use crate::boot::{Boot, Stock};

/// Functions whose calls, in Debian's 6.1, almost all return to a patched instruction.
const PROBES: [&str; 4] = [
    // A jump label follows each call.
    "kretprobe:psi_flags_change",
    "kretprobe:__free_one_page",
    "kretprobe:__flush_smp_call_function_queue",
    // The static call of `cond_resched`.
    "kretprobe:vm_area_free",
];

#[test]
fn returns_to_patched_instructions_are_seen_in_debian_6_1() {
    let stock = Stock::fetch("debian-6.1");
    let mut boot = Boot::new(&stock, "opens=40 reads=31 getpids=23").cpus(2);
    for probe in PROBES {
        boot = boot.probe(probe);
    }
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    for probe in &summary.probes {
        let missed: u64 = probe.missed.values().sum();
        let (returns, in_flight) = (probe.returns.unwrap_or(0), probe.in_flight.unwrap_or(0));
        assert_eq!(probe.hits, returns + in_flight + missed, "{probe:?}");
        assert!(probe.hits > 0, "{probe:?}");
        let unseen = probe.missed.get("return-site").copied().unwrap_or(0);
        assert!(unseen * 100 < probe.hits, "{probe:?}");
    }
}
