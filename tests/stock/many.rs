//! More than a thousand probes at once.

use events::ProbeState;
use manifest::GuestEnd;

use crate::boot::{Boot, Stock, probe};

const PROBES: usize = 1000;
/// Functions are not everywhere in the kernel proper: some kernels have ext4 as a module.
const PATTERNS: [&str; 9] = [
    "vfs_*", "tcp_*", "ext4_*", "ip_*", "ip6_*", "udp_*", "inet_*", "sock_*", "dev_*",
];

fn check(image: &str, cpus: u8) {
    let stock = Stock::fetch(image);
    let found = |pattern: &&str| {
        stock
            .kernel
            .symbols()
            .matching(pattern)
            .any(|symbol| symbol.is_text() && symbol.size > 0)
    };
    let mut boot = Boot::new(&stock, "opens=50 reads=20")
        .cpus(cpus)
        .probe("kprobe:do_sys_openat2");
    for pattern in PATTERNS.iter().filter(|pattern| found(pattern)) {
        boot = boot.probe(&format!("kprobe:{pattern}"));
    }
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let (summary, counts) = (ran.summary(), ran.counts());
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    assert!(
        summary.probes.len() > PROBES,
        "{} probes",
        summary.probes.len()
    );
    for probe in &summary.probes {
        // Functions that exist only during boot are gone afterwards.
        assert!(
            matches!(probe.state, ProbeState::Armed | ProbeState::Gone),
            "{}: {:?}",
            probe.probe,
            probe.reason
        );
    }
    let armed = summary
        .probes
        .iter()
        .filter(|probe| probe.state == ProbeState::Armed);
    assert!(armed.count() > PROBES);
    assert_eq!(probe(&summary, "kprobe:do_sys_openat2").hits, counts.openat);
    // One function calls the other, at the least as often as the workload reads.
    assert!(probe(&summary, "kprobe:vfs_read").hits >= counts.read);
    let told = ran.hits().len() as u64;
    assert_eq!(
        told,
        summary.probes.iter().map(|probe| probe.hits).sum::<u64>()
    );
}

#[test]
fn a_thousand_probes_in_debian_6_1() {
    check("debian-6.1", 2);
}

#[test]
fn a_thousand_probes_in_debian_sid() {
    check("debian-sid", 1);
}
