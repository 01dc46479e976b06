//! The promises of hyprobe, and the cases that test each promise.

/// A promise.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// In a line.
    pub promise: &'static str,
    /// The cases that fail if the promise is broken.
    pub cases: &'static [&'static str],
}

const fn feature(promise: &'static str, cases: &'static [&'static str]) -> Feature {
    Feature { promise, cases }
}

/// In the order of the table.
pub const FEATURES: &[Feature] = &[
    feature(
        "kprobe: pre- and post-handler around any instruction",
        &["handlers", "handlers-smp"],
    ),
    feature(
        "kprobe: the fault-handler sees the fault, and may swallow it",
        &[
            "handler-fault",
            "handler-fault-swallowed",
            "handler-raise",
            "handler-raise-swallowed",
        ],
    ),
    feature(
        "symbol, symbol+offset or address; never an offset from an address",
        &["addresses"],
    ),
    feature(
        "an offset inside an instruction is refused, naming the boundaries around it",
        &["refusals"],
    ),
    feature(
        "every instruction of every function is gone past exactly",
        &[
            "instructions",
            "instructions-smp",
            "calls",
            "recurse",
            "fault",
            "msr",
            "lstar",
            "all",
            "raise",
            "intn",
            "outs",
            "ud",
            "instructions-ring3",
        ],
    ),
    feature(
        "generated instructions of every class leave the same registers, memory and exceptions behind, probed or not",
        &["generated"],
    ),
    feature(
        "no interrupt, wake-up or NMI is lost where each instruction is probed",
        &["instructions-wait", "instructions-nmi", "nmi-watched"],
    ),
    feature(
        "one exit a hit, where emulated or relocated",
        &["exits", "relocated", "vector"],
    ),
    feature(
        "probes that only count: no exit a hit, not a call lost when the jumps come and go or the guest rewrites them",
        &[
            "optimised",
            "optimised-smp",
            "optimised-selfpatch",
            "optimised-live",
        ],
    ),
    feature(
        "probes that tell their hits: no exit a hit, each hit told once, with the registers as they were",
        &["recorded", "recorded-smp"],
    ),
    feature(
        "return probes: an entry is recorded without an exit, and its return is reported",
        &["recorded-returns"],
    ),
    feature(
        "where a jump has no room, at entries and where calls return to: no exit a hit, by way of the guest's own handler of int3; where the host keeps that from the guest, it is said and hits exit",
        &["optimised-int3"],
    ),
    feature(
        "filters and aggregates come to the same in the guest as in the VMM",
        &["programs"],
    ),
    feature(
        "copies of instructions: the guest cannot change them, and they go when no probe needs them",
        &["detour-writes", "detour-live"],
    ),
    feature(
        "several probes at one instruction, of any kind, in the order of registration",
        &["colocated"],
    ),
    feature(
        "return probe: every kind of function, recursion, tail calls",
        &[
            "returns",
            "returns-recursion",
            "returns-tail",
            "returns-smp",
            "stock-returns",
        ],
    ),
    feature(
        "return probe: handlers at entry and return, data of each call, calls declined",
        &["returns-handler", "returns-declined"],
    ),
    feature(
        "return probe: maxactive; what is missed is counted by reason",
        &["returns-maxactive"],
    ),
    feature(
        "return probe: frames that are left without a return",
        &["returns-abandoned"],
    ),
    feature(
        "return probe: tasks that end inside",
        &["returns-task-ends", "stock-tasks-end"],
    ),
    feature(
        "the arguments of a function at its entry, the registers at any hit",
        &["arguments"],
    ),
    feature(
        "enable and disable one or many; registered disabled",
        &["enable", "enable-many"],
    ),
    feature(
        "arrays are registered as a whole or not at all; removal",
        &["transaction", "unregister"],
    ),
    feature(
        "the knob takes every plant away and keeps each probe's own state",
        &["knob"],
    ),
    feature(
        "a handler changes the path: no execution, no post-handler",
        &["change-path"],
    ),
    feature(
        "fault injection: registers, memory, a forced return, another return value",
        &[
            "set-registers",
            "set-memory",
            "force-return",
            "set-return-value",
        ],
    ),
    feature(
        "accounting: entries = returns + in flight + missed, hits told = hits counted",
        &["accounting", "calls"],
    ),
    feature(
        "refusals say why; entry code, exception stubs and what kprobes refuses can be probed",
        &["refusals", "entry-code", "entry-fault", "stock-entry"],
    ),
    feature("list and status of each probe", &["status"]),
    feature(
        "two vCPUs: no hit is missed, probes come and go meanwhile",
        &[
            "smp",
            "instructions-smp",
            "live-smp",
            "come-and-go",
            "pauses",
            "pause",
        ],
    ),
    feature(
        "probes in modules: pending, armed before the first instruction, gone",
        &["stock-module"],
    ),
    feature(
        "a stock Debian kernel boots with probes, hits are what its workload counts, and powers off",
        &["stock"],
    ),
    feature(
        "breakpoints of the guest's own reach it",
        &["int3", "own-int3", "stock-int3"],
    ),
    feature(
        "text that the guest rewrites runs as rewritten",
        &["selfpatch", "writers"],
    ),
    feature(
        "the guest's text is its own when the probes are gone",
        &[
            "text-unprobed",
            "text-planted",
            "text-afterwards",
            "text-afterwards-smp",
        ],
    ),
    feature(
        "TF is never seen by the guest; ring 3 and system calls run beside probes",
        &["flags", "raise", "syscall0", "ring3", "syscall"],
    ),
    feature(
        "a guest that steps itself sees each step, also through probes",
        &["own-steps", "steps"],
    ),
    feature(
        "a debug exception of the guest's own reaches it while a debug register of hyprobe's is in use",
        &["int1"],
    ),
    feature(
        "probes of every kind that share a place: no exit a hit, and each has its own counts",
        &["optimised-shared"],
    ),
    feature(
        "watchpoints: each write to the watched bytes is reported once, with old and new value and the instruction, locked instructions of two vCPUs included",
        &[
            "watch",
            "watch-probed",
            "watch-smp",
            "watch-vector",
            "watch-live",
            "watch-many",
            "watch-many-removed",
            "watch-range",
        ],
    ),
    feature(
        "watchpoints of reads: each read of the watched bytes is reported once, with the value and the instruction",
        &[
            "watch-reads",
            "watch-reads-smp",
            "watch-reads-vector",
            "watch-odd",
        ],
    ),
    feature(
        "probes in programs: hits and returns are the calls that the program counts, in every process of the file",
        &["stock-program"],
    ),
    feature(
        "stealth reads: the guest reads its own bytes in probed code, all hits are counted",
        &["text-hidden"],
    ),
    feature(
        "a guest that looks for probes finds the documented traces, and no other",
        &[
            "looks-unprobed",
            "looks-kprobe",
            "looks-registers",
            "looks-kretprobe",
            "looks-jump",
            "looks-watch",
        ],
    ),
    feature(
        "stealth registers: four instructions in debug registers, no byte of the guest changes, each execution without RF is counted",
        &[
            "registers",
            "registers-smp",
            "registers-fault",
            "registers-ring3",
            "registers-refused",
            "registers-live",
        ],
    ),
    feature(
        "watchpoints in debug registers: each write of an instruction is reported once, those of emulated and copied instructions included; where the host has none for data, it is said",
        &[
            "watch-hw",
            "watch-hw-probed",
            "watch-hw-vector",
            "watch-hw-smp",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::contract::{cases, names};

    #[test]
    fn each_promise_has_cases_and_each_case_is_behind_one() {
        let known: BTreeSet<&str> = names().collect();
        assert_eq!(known.len(), names().count(), "a name is used twice");
        let mut used = BTreeSet::from(["unprobed"]);
        for feature in FEATURES {
            assert!(!feature.cases.is_empty(), "{}", feature.promise);
            for case in feature.cases {
                assert!(known.contains(case), "{case}");
                used.insert(case);
            }
        }
        let unused: Vec<_> = known.difference(&used).collect();
        assert!(unused.is_empty(), "{unused:?}");
        assert!(cases().all(|case| case.variants().count() > 0));
    }
}
