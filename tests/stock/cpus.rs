//! Probes without exits in functions that a CPU executes before loading the kernel's interrupt table: no `int3` may be in the functions
//! while a CPU starts. A kernel executes the functions at boot, and each time a CPU goes online again.

use events::{ProbeState, ProbeSummary, Tier};
use manifest::GuestEnd;

use crate::boot::{Boot, Stock, probe};

/// A probe on each was once the end of a guest with two vCPUs; not every kernel has all of the functions.
const BRING_UP: [&str; 10] = [
    "start_secondary",
    "cr4_init",
    "cr4_set_bits",
    "cr4_update_irqsoff",
    "native_load_tr_desc",
    "cpu_init_exception_handling",
    "set_bringup_idt_handler.constprop.0",
    "memset",
    "memset_erms",
    "memset_orig",
];
const STARTS: &str = "kprobe:start_secondary";
/// The kernel's own `int3`, which the handler of the `int3` reads. In some kernels, the instruction has a symbol.
const OWN_INT3: &str = "kprobe:int3_selftest_ip";
/// The number of times that the second CPU goes offline and comes back.
const CYCLES: u64 = 5;
const SCRIPT: &str = "#!/bin/busybox sh
busybox() { /bin/busybox \"$@\"; }
busybox mount -t sysfs sysfs /sys
cpu=/sys/devices/system/cpu/cpu1/online
for cycle in 1 2 3 4 5; do
    echo 0 > $cpu && echo 1 > $cpu && echo cycle $cycle
done
echo online: $(busybox cat /sys/devices/system/cpu/online)
busybox poweroff -f
";

/// By address where two functions have the same name.
fn bring_up(stock: &Stock) -> Vec<String> {
    let symbols = stock.kernel.symbols();
    let functions = |name: &&str| {
        let named = symbols.matching(name);
        let code = named.filter(|symbol| symbol.is_text() && symbol.size > 0);
        let all: Vec<_> = code.map(|symbol| symbol.address).collect();
        match all[..] {
            [_] => vec![format!("kprobe:{name}")],
            _ => all.iter().map(|at| format!("kprobe:{:#x}", at.0)).collect(),
        }
    };
    BRING_UP.iter().flat_map(functions).collect()
}

fn check(image: &str) {
    let stock = Stock::fetch(image);
    let mut boot = Boot::with_script(&stock, SCRIPT).cpus(2);
    for spec in bring_up(&stock) {
        boot = boot.counted(&spec);
    }
    let has_own_int3 = stock.is_function("int3_selftest_ip");
    if has_own_int3 {
        boot = boot.counted(OWN_INT3);
    }
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    assert!(ran.console.contains("cycle 5"), "{}", ran.report());
    assert!(ran.console.contains("online: 0-1"), "{}", ran.report());
    let summary = ran.summary();
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    for probe in &summary.probes {
        assert!(probe.missed.is_empty(), "{probe:?}");
        assert!(
            matches!(probe.state, ProbeState::Armed | ProbeState::Gone),
            "{probe:?}"
        );
    }
    // By an `int3`, while both CPUs are online.
    let starts = probe(&summary, STARTS);
    assert_eq!(
        (starts.hits, starts.tier),
        (1 + CYCLES, Some(Tier::Optimised)),
        "{starts:?}"
    );
    let is_optimised = |probe: &&ProbeSummary| probe.tier == Some(Tier::Optimised);
    assert!(
        summary.probes.iter().filter(is_optimised).count() > 2,
        "{:?}",
        summary.probes
    );
    if has_own_int3 {
        let own = probe(&summary, OWN_INT3);
        assert_eq!((own.hits, own.state), (1, ProbeState::Gone), "{own:?}");
    }
}

#[test]
fn cpus_of_debian_5_10_start_through_probed_functions() {
    check("debian-5.10");
}

#[test]
fn cpus_of_debian_6_1_start_through_probed_functions() {
    check("debian-6.1");
}

#[test]
fn cpus_of_debian_6_12_start_through_probed_functions() {
    check("debian-6.12");
}

#[test]
fn cpus_of_debian_sid_start_through_probed_functions() {
    check("debian-sid");
}
