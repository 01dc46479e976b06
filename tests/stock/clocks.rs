//! Probes in loops on data that KVM changes at exits.

use address::Gva;
use events::ProbeState;
use introspect::Symbol;
use manifest::ProbeSpec;
use probes::{Kernel, Refusal, resolve};

use crate::boot::{Boot, Stock, probe};

const WORKLOAD: &str = "opens=10 reads=10 getpids=10";
const IMAGES: [&str; 4] = ["debian-5.10", "debian-6.1", "debian-6.12", "debian-sid"];
/// The function reads a version in a loop; KVM raises the version at each `KVM_RUN`.
const STEAL_TIME: &str = "kvm_steal_clock";

/// The first instructions of the loops in `function`: each the target of a jump backwards.
fn loops(kernel: &Kernel, function: &Symbol) -> Vec<String> {
    kernel
        .instructions(function)
        .map_while(Result::ok)
        .filter_map(|decoded| Some((decoded.at(), decoded.branch_target()?)))
        .filter(|(from, to)| (function.address..*from).contains(to))
        .map(|(_, to)| format!("kprobe:{}+{:#x}", function.name, to.0 - function.address.0))
        .collect()
}

/// The functions of kvm-clock that execute `rdtsc`, each with the instruction: the compiler puts the loop into different functions.
fn clock_readers(kernel: &Kernel) -> Vec<(Symbol, Gva)> {
    let is_of_clock = |symbol: &Symbol| {
        let name = &symbol.name;
        symbol.is_text()
            && !name.contains(".cold")
            && !name.starts_with("__pfx_")
            && (name.contains("pvclock") || name.starts_with("kvm_"))
            && name.contains("clock")
    };
    let read = |symbol: Symbol| {
        let mut decoded = kernel.instructions(&symbol).map_while(Result::ok);
        let read = decoded.find(|decoded| decoded.text().contains("rdtsc"))?;
        Some((symbol, read.at()))
    };
    let symbols = kernel.symbols().iter();
    symbols.filter(is_of_clock).filter_map(read).collect()
}

/// On a host with an unstable TSC, exits of hits would make the loop endless.
#[test]
fn the_loops_that_read_the_clock_are_refused_on_every_kernel() {
    for image in IMAGES {
        let stock = Stock::fetch(image);
        let readers = clock_readers(&stock.kernel);
        assert!(!readers.is_empty(), "{image}");
        for (reader, read) in readers {
            let place = |offset: u64| {
                let spec = format!("kprobe:{}+{offset:#x}", reader.name);
                let parsed: ProbeSpec = spec.parse().expect("a probe");
                let found = resolve(&stock.kernel, &parsed, 0).expect("it resolves");
                found.into_iter().next().expect("one").place
            };
            let name = &reader.name;
            let refused = place(read.0 - reader.address.0);
            assert_eq!(refused, Err(Refusal::ClockLoop), "{image}: {name}");
            assert!(place(0).is_ok(), "{image}: {name}");
        }
    }
}

/// If the guest read the steal time, the exits of the hits would keep the loop going.
#[test]
fn a_guest_with_probes_in_the_loop_that_reads_its_steal_time_comes_to_its_end() {
    let stock = Stock::fetch("debian-6.1");
    let function = stock.kernel.symbols().lookup(STEAL_TIME).expect(STEAL_TIME);
    let loops = loops(&stock.kernel, &function);
    assert!(!loops.is_empty());
    let boot = Boot::new(&stock, WORKLOAD)
        .without_jumps()
        .option("--timeout", "150s");
    let boot = loops.iter().fold(boot, |boot, spec| boot.counted(spec));
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let summary = ran.summary();
    for spec in &loops {
        let probe = probe(&summary, spec);
        // Armed, and never executed.
        assert_eq!((probe.state, probe.hits), (ProbeState::Armed, 0), "{spec}");
    }
}
