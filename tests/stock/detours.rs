//! Probes on instructions that only the processor can execute: stock kernels run copies of the instructions.

use std::collections::{BTreeMap, BTreeSet};

use events::{ProbeState, Tier};
use introspect::insn::{Class, CpuidWords, Decoded, Needs, Relocation, classify, relocation};
use manifest::{GuestEnd, Word as _};

use crate::boot::{Boot, Stock, probe};

/// The maximum number of probes on a command line.
const MAX_PROBES: usize = 600;
/// The maximum number of probes in a function. Code that computes with vector registers has hundreds of candidates, and boots that test
/// the code would take long.
const PER_FUNCTION: usize = 2;
/// The functions with which kernels read their clocks.
const CLOCKS: [&str; 4] = [
    "read_tsc",
    "native_sched_clock",
    "rdtsc_ordered",
    "pvclock_clocksource_read",
];

/// Whether the emulator cannot execute the instruction and a copy can, for every set of features that the kernel may switch on.
fn is_copied(decoded: &Decoded) -> bool {
    let needs = relocation(decoded, &CpuidWords::ALL);
    let copied = matches!(
        needs,
        Relocation::Relocatable(Needs::Nothing | Needs::Sse | Needs::Fpu)
    );
    copied && matches!(classify(decoded), Class::MustStep(_))
}

/// The probes at copied instructions in the kernel's text. The probes in clock functions come first.
fn places(stock: &Stock) -> Vec<String> {
    let kernel = &stock.kernel;
    let symbols: Vec<_> = kernel.symbols().matching("*").collect();
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for symbol in &symbols {
        *named.entry(&symbol.name).or_default() += 1;
    }
    let mut seen = BTreeSet::new();
    let mut clocks = Vec::new();
    let mut others = Vec::new();
    for symbol in &symbols {
        let patched = |at: &Decoded| {
            kernel
                .sites()
                .overlapping(at.at(), at.len() as u64)
                .is_some()
        };
        let entry = kernel.is_entry(symbol.address) || kernel.is_init(symbol.address);
        // The function's `cpuid` is executed once for each site that the kernel patches at boot, before any copies can exist.
        let patches = &*symbol.name == "text_poke_early";
        let ambiguous = named[&*symbol.name] > 1;
        if !symbol.is_text()
            || symbol.size == 0
            || entry
            || patches
            || ambiguous
            || !seen.insert(symbol.address)
        {
            continue;
        }
        let found = kernel
            .instructions(symbol)
            .map_while(Result::ok)
            .filter(|decoded| is_copied(decoded) && !patched(decoded))
            .take(PER_FUNCTION)
            .map(|decoded| match decoded.at().0 - symbol.address.0 {
                0 => format!("kprobe:{}", symbol.name),
                offset => format!("kprobe:{}+{offset:#x}", symbol.name),
            });
        if CLOCKS.contains(&&*symbol.name) {
            clocks.extend(found);
        } else {
            others.extend(found);
        }
    }
    // From everywhere in the kernel.
    let every = others.len().div_ceil(MAX_PROBES).max(1);
    clocks.extend(others.into_iter().step_by(every));
    clocks
}

fn check(image: &str, cpus: u8, boot: manifest::Boot) {
    let stock = Stock::fetch(image);
    let places = places(&stock);
    assert!(places.len() >= 100, "{image}: {} places", places.len());
    // With a single vCPU, the kernel's messages do not interrupt the workload's lines.
    let talks = cpus == 1;
    let workload = "opens=100 reads=50 getpids=20";
    let talkative = "opens=100 reads=50 getpids=20 loglevel=7";
    let mut boot = Boot::new(&stock, if talks { talkative } else { workload })
        .cpus(cpus)
        .option("--boot", boot.word())
        .probe("kprobe:do_sys_openat2");
    for place in &places {
        boot = boot.probe(place);
    }
    // Some have room for a jump, and would not be copied.
    boot = boot.without_jumps();
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let (summary, counts) = (ran.summary(), ran.counts());
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    assert_eq!(probe(&summary, "kprobe:do_sys_openat2").hits, counts.openat);
    let mut copied = (0, 0);
    for place in &places {
        let probe = probe(&summary, place);
        // Some code is rewritten while the kernel boots.
        if probe.state == ProbeState::Refused {
            continue;
        }
        match probe.tier {
            None => assert_eq!(probe.hits, 0),
            Some(Tier::Relocated) => {
                assert_eq!(probe.exits, probe.hits, "{place}");
                copied = (copied.0 + 1, copied.1 + probe.hits);
            }
            // Until the kernel's page tables are final, the instructions are executed in place.
            Some(Tier::Stepped) => {
                assert!(
                    (probe.hits + 1..=2 * probe.hits).contains(&probe.exits),
                    "{probe:?}"
                );
            }
            Some(Tier::Optimised | Tier::Emulated) => panic!("{place} is not for the emulator"),
        }
    }
    let told: u64 = summary.probes.iter().map(|probe| probe.hits).sum();
    assert_eq!(ran.hits().len() as u64, told);
    println!(
        "{image}: {} places, {} were hit as copies, {} times",
        places.len(),
        copied.0,
        copied.1
    );
    assert!(copied.0 >= 5 && copied.1 >= 100, "{copied:?}");
    let notes: Vec<_> = ran.notes();
    assert!(
        notes.iter().all(|note| !note.contains("executed in place")),
        "{notes:?}"
    );
    // The memory map given to the guest, and printed by the guest at the start.
    if talks {
        assert!(ran.console.contains("BIOS-e820") && !ran.console.contains("0x0000001000000000"));
    }
}

#[test]
fn debian_6_1_runs_copies() {
    check("debian-6.1", 1, manifest::Boot::Direct);
}

#[test]
fn debian_sid_runs_copies_on_two_vcpus() {
    check("debian-sid", 2, manifest::Boot::Direct);
}

#[test]
fn a_kernel_that_has_moved_runs_copies() {
    check("debian-6.1", 2, manifest::Boot::BzImage);
}
