//! The loops that read kvm-clock.
//!
//! A guest reads kvm-clock's version and values until two reads of the version are equal. If the host's kernel calls its TSC
//! unstable, KVM raises the version at each `KVM_RUN`: a hit in such a loop that exits keeps the loop going for ever. A host's
//! kernel can come to that opinion of its TSC at any time. And after a hit that held its vCPU up for a second, hyprobe itself has KVM
//! raise the version, on every host (`docs/pausing.md`). So the loops are refused on every host.

use introspect::insn::boundaries;
use introspect::{Gva, Symbol};

/// The functions of Linux 5.10 to 7.2 that the loop is in, or is inlined into.
const READERS: [&str; 7] = [
    "__pvclock_clocksource_read",
    "kvm_clock_get_cycles",
    "kvm_clock_get_cycles_snapshot",
    "kvm_sched_clock_read",
    "pvclock_clocksource_read",
    "pvclock_clocksource_read_nowd",
    "pvclock_read_flags",
];

/// Whether the instruction at `at` in `symbol`, whose bytes are `code`, is in a loop that reads kvm-clock.
pub(super) fn is_in_loop(symbol: &Symbol, code: &[u8], at: Gva) -> bool {
    // A compiler names the copies that it makes of a function `NAME.part.0`, and similarly.
    let (name, _) = symbol.name.split_once('.').unwrap_or((&symbol.name, ""));
    READERS.contains(&name)
        && boundaries(code, symbol.address)
            .map_while(Result::ok)
            .filter(|decoded| decoded.at() >= at)
            .any(|end| {
                end.branch_target()
                    .is_some_and(|start| (symbol.address..=at).contains(&start))
            })
}
