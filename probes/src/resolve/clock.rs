//! Finds loops that read kvm-clock.
//!
//! A guest reads kvm-clock's version and values until two reads of the version are equal. If the host's kernel calls its TSC unstable, KVM
//! raises the version at each `KVM_RUN`: a hit in the loop that exits keeps the loop going for ever. A host's kernel can mark its TSC
//! unstable at any time. After a hit that has stopped its vCPU for a second, hyprobe itself makes KVM raise the version, on every host
//! (`docs/pausing.md`). Therefore instructions in the loops are refused on every host.

use std::collections::BTreeMap;

use address::Gva;
use iced_x86::FlowControl;
use introspect::Symbol;
use introspect::insn::{Decoded, boundaries};

/// The functions of Linux 5.10 to 7.2 with the loop, or into which a compiler may inline the loop.
const READERS: [&str; 9] = [
    "__pvclock_clocksource_read",
    "kvm_clock_get_cycles",
    "kvm_clock_get_cycles_snapshot",
    "kvm_clock_read",
    "kvm_sched_clock_read",
    "kvmclock_init",
    "pvclock_clocksource_read",
    "pvclock_clocksource_read_nowd",
    "pvclock_read_flags",
];

/// Whether the instruction at `at` in `symbol`, whose bytes are `code`, is in a loop of a function that reads kvm-clock.
pub(super) fn is_in_loop(symbol: &Symbol, code: &[u8], at: Gva) -> bool {
    // A compiler names its copies of a function `NAME.part.0`, and similarly.
    let (name, _) = symbol.name.split_once('.').unwrap_or((&symbol.name, ""));
    READERS.contains(&name) && reaches_itself(symbol, code, at)
}

/// Whether the vCPU can return from the instruction at `at` to the same instruction within the function.
fn reaches_itself(symbol: &Symbol, code: &[u8], at: Gva) -> bool {
    let decoded = boundaries(code, symbol.address).map_while(Result::ok);
    let mut unseen: BTreeMap<Gva, Decoded> = decoded.map(|it| (it.at(), it)).collect();
    let mut waiting = vec![at];
    while let Some(next) = waiting.pop() {
        // Two branches may have the same target.
        let Some(decoded) = unseen.remove(&next) else {
            continue;
        };
        for next in successors(&decoded).into_iter().flatten() {
            if next == at {
                return true;
            }
            waiting.push(next);
        }
    }
    false
}

/// The next addresses behind `decoded` within a function, without called functions.
fn successors(decoded: &Decoded) -> [Option<Gva>; 2] {
    let behind = Some(decoded.next());
    let target = decoded.branch_target();
    match decoded.instruction().flow_control() {
        FlowControl::UnconditionalBranch => [target, None],
        FlowControl::ConditionalBranch => [behind, target],
        FlowControl::IndirectBranch | FlowControl::Return | FlowControl::Exception => [None, None],
        _ => [behind, None],
    }
}
