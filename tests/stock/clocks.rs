//! Loops that read what KVM writes, until it no longer changes.

use crate::boot::{Boot, Stock};

const WORKLOAD: &str = "opens=10 reads=10 getpids=10";

/// Each such loop of the kernel reads a version, the values, and the version again.
const READERS: [&str; 3] = [
    "kvm_steal_clock",
    "pvclock_clocksource_read",
    "__pvclock_clocksource_read",
];

/// The first instructions of the loops in `function`: each the target of a jump backwards.
fn loops(stock: &Stock, function: &str) -> Vec<String> {
    let Some(symbol) = stock.kernel.symbols().lookup(function) else {
        return Vec::new();
    };
    stock
        .kernel
        .instructions(&symbol)
        .map_while(Result::ok)
        .filter_map(|decoded| Some((decoded.at(), decoded.branch_target()?)))
        .filter(|(from, to)| (symbol.address..*from).contains(to))
        .map(|(_, to)| format!("kprobe:{function}+{:#x}", to.0 - symbol.address.0))
        .collect()
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let mut boot = Boot::new(&stock, WORKLOAD)
        .without_jumps()
        .option("--timeout", "150s");
    let mut probes = 0;
    for function in READERS {
        for spec in loops(&stock, function) {
            boot = boot.counted(&spec);
            probes += 1;
        }
    }
    assert!(probes >= 2, "{probes} loops");
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.told());
    ran.assert_well();
    let summary = ran.summary();
    let read = summary.probes.iter().map(|probe| probe.hits).sum::<u64>();
    assert!(read > 0, "{:?}", summary.probes);
}

/// If the exit of a hit changed the version, the loop would never end.
#[test]
fn the_exits_of_hits_in_a_loop_do_not_keep_it_going_on_debian_6_1() {
    check("debian-6.1");
}

#[test]
fn the_exits_of_hits_in_a_loop_do_not_keep_it_going_on_debian_sid() {
    check("debian-sid");
}
