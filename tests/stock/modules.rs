//! Probes in modules: each probe waits for the module, sees the module's first function, and goes with the module.

use events::ProbeState;
use manifest::GuestEnd;

use crate::boot::{Boot, Stock, probe};

/// `dummy` makes a network device when loaded, and removes the device when unloaded.
const LOADED_ONCE: [&str; 3] = [
    "kprobe:dummy:dummy_init_module",
    "kprobe:dummy:dummy_setup",
    "kprobe:dummy:dummy_dev_init",
];

fn check(image: &str, cpus: u8) {
    let stock = Stock::fetch(image);
    let mut boot = Boot::new(&stock, "opens=5 modunload=dummy")
        .cpus(cpus)
        .modules(&["dummy", "tun"])
        .probe("kretprobe:dummy:dummy_init_module")
        .probe("kretprobe:dummy:dummy_dev_init")
        .probe("kprobe:dummy:cleanup_module")
        .probe("kprobe:tun:tun_init")
        .probe("kprobe:tun:tun_chr_*")
        .probe("kprobe:dummy:no_such_function")
        .probe("kprobe:not_there:init_module")
        .probe("kprobe:do_sys_openat2");
    for name in LOADED_ONCE {
        boot = boot.probe(name);
    }
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let (summary, counts) = (ran.summary(), ran.counts());
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    assert_eq!(probe(&summary, "kprobe:do_sys_openat2").hits, counts.openat);
    for name in LOADED_ONCE
        .into_iter()
        .chain(["kprobe:dummy:cleanup_module"])
    {
        let probe = probe(&summary, name);
        assert_eq!((probe.hits, probe.state), (1, ProbeState::Gone), "{name}");
    }
    for name in [
        "kretprobe:dummy:dummy_init_module",
        "kretprobe:dummy:dummy_dev_init",
    ] {
        let probe = probe(&summary, name);
        let accounted = (probe.hits, probe.returns, probe.in_flight, probe.state);
        assert_eq!(accounted, (1, Some(1), Some(0), ProbeState::Gone), "{name}");
        let returns = ran.returns();
        let told = returns.iter().find(|told| *told.probe == *name);
        let told = told.unwrap_or_else(|| panic!("no return of {name}\n{}", ran.report()));
        assert_eq!(told.retval.0, 0, "{name} succeeds");
        assert!(told.symbol.ends_with(" [dummy]"), "{}", told.symbol);
    }
    let init = probe(&summary, "kprobe:tun:tun_init");
    assert_eq!(init.hits, 1);
    let matched: Vec<_> = summary
        .probes
        .iter()
        .filter(|probe| probe.probe.starts_with("kprobe:tun:tun_chr_"))
        .collect();
    assert!(matched.len() > 3, "{matched:?}");
    for probe in matched {
        assert_eq!(
            (probe.hits, probe.state),
            (0, ProbeState::Armed),
            "{probe:?}"
        );
    }
    let missing = probe(&summary, "kprobe:dummy:no_such_function");
    assert_eq!(missing.state, ProbeState::Refused);
    let waiting = probe(&summary, "kprobe:not_there:init_module");
    assert_eq!((waiting.hits, waiting.state), (0, ProbeState::Pending));
}

#[test]
fn debian_6_1_probes_modules() {
    check("debian-6.1", 2);
}

#[test]
fn debian_6_12_probes_modules() {
    check("debian-6.12", 1);
}
