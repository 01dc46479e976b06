//! Calls that return to instructions patched by the kernel (jump labels and static calls), and the stacks behind returns.

use std::collections::BTreeMap;

use events::StackFrame;
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

/// A function that does not call itself, with stacks at the entry and behind the return.
const WITH_STACKS: &str = "
[[probe]]
at = \"kprobe:do_filp_open\"
stack = true

[[probe]]
at = \"kretprobe:do_filp_open\"
stack = true
";
const OPENS: u64 = 40;

/// The callers behind a function: address, name, and whether a call returns there.
fn callers(frames: &[StackFrame]) -> Vec<(u64, Option<&str>, bool)> {
    let callers = frames.iter();
    callers
        .map(|frame| {
            let symbol = frame.symbol.as_deref();
            (frame.address.0, symbol, frame.is_return_address)
        })
        .collect()
}

#[test]
fn return_has_the_stack_of_the_callers_in_debian_6_1() {
    let stock = Stock::fetch("debian-6.1");
    let parameters = format!("opens={OPENS}");
    let ran = Boot::new(&stock, &parameters).expecting(WITH_STACKS).run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    assert_eq!(ran.summary().guest.end, GuestEnd::Poweroff);
    let tid = |task: &Option<events::Task>| task.as_ref().map(|task| task.tid);
    let mut entries: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for hit in ran.hits() {
        entries.entry(tid(&hit.task)).or_default().push(hit);
    }
    let (mut compared, mut seen) = (0, BTreeMap::new());
    for returned in ran.returns() {
        let number: &mut usize = seen.entry(tid(&returned.task)).or_default();
        let entry = &entries[&tid(&returned.task)][*number];
        *number += 1;
        let (Some(within), Some(behind)) = (&entry.stack, &returned.stack) else {
            panic!("{entry:?}\n{returned:?}");
        };
        let (expected, shown) = (callers(&within[1..]), callers(behind));
        assert_eq!(shown[1..], expected[1..], "{returned:?}");
        // The call has returned: its return address is the next instruction.
        let [(at, name, is_return_address), ..] = shown[..] else {
            panic!("{returned:?}");
        };
        assert_eq!((at, name), (expected[0].0, expected[0].1), "{returned:?}");
        assert!(!is_return_address, "{returned:?}");
        assert_eq!(
            (at, returned.stack_incomplete.as_deref()),
            (returned.ip.0, None)
        );
        compared += 1;
    }
    assert!(compared >= OPENS, "{compared}: {}", ran.report());
}
