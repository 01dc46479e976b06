//! Every case of the rigs' contract on this machine's own KVM.

use std::collections::BTreeSet;

use hyprobe_rigs::contract::{self, Here};
use hyprobe_rigs::way::Way;

use crate::BENCH;

/// Makes a test for each case, and the list of the tested cases.
macro_rules! tests {
    ($($test:ident = $case:literal,)*) => {
        $(
            #[test]
            fn $test() {
                run($case);
            }
        )*

        const TESTED: &[&str] = &[$($case),*];
    };
}

tests! {
    unprobed = "unprobed",
    recurse = "recurse",
    calls = "calls",
    exits = "exits",
    flags = "flags",
    selfpatch = "selfpatch",
    int3 = "int3",
    own_int3 = "own-int3",
    fault = "fault",
    ring3 = "ring3",
    msr = "msr",
    lstar = "lstar",
    smp = "smp",
    all = "all",
    addresses = "addresses",
    refusals = "refusals",
    entry_code = "entry-code",
    entry_fault = "entry-fault",
    status = "status",
    handlers = "handlers",
    handlers_smp = "handlers-smp",
    own_steps = "own-steps",
    steps = "steps",
    handler_fault = "handler-fault",
    handler_fault_swallowed = "handler-fault-swallowed",
    colocated = "colocated",
    arguments = "arguments",
    change_path = "change-path",
    force_return = "force-return",
    set_registers = "set-registers",
    set_memory = "set-memory",
    set_return_value = "set-return-value",
    returns = "returns",
    returns_recursion = "returns-recursion",
    returns_smp = "returns-smp",
    returns_handler = "returns-handler",
    returns_declined = "returns-declined",
    returns_maxactive = "returns-maxactive",
    returns_tail = "returns-tail",
    returns_abandoned = "returns-abandoned",
    returns_task_ends = "returns-task-ends",
    accounting = "accounting",
    text_unprobed = "text-unprobed",
    text_planted = "text-planted",
    text_hidden = "text-hidden",
    text_afterwards = "text-afterwards",
    text_afterwards_smp = "text-afterwards-smp",
    enable = "enable",
    enable_many = "enable-many",
    knob = "knob",
    transaction = "transaction",
    unregister = "unregister",
    live_smp = "live-smp",
    raise = "raise",
    ud = "ud",
    syscall0 = "syscall0",
    handler_raise = "handler-raise",
    handler_raise_swallowed = "handler-raise-swallowed",
    relocated = "relocated",
    detour_writes = "detour-writes",
    detour_live = "detour-live",
    optimised = "optimised",
    optimised_smp = "optimised-smp",
    optimised_selfpatch = "optimised-selfpatch",
    optimised_live = "optimised-live",
    recorded = "recorded",
    recorded_smp = "recorded-smp",
    recorded_returns = "recorded-returns",
    programs = "programs",
    optimised_int3 = "optimised-int3",
    optimised_shared = "optimised-shared",
    instructions_wait = "instructions-wait",
    instructions_nmi = "instructions-nmi",
    nmi_watched = "nmi-watched",
    outs = "outs",
    instructions = "instructions",
    instructions_smp = "instructions-smp",
    writers = "writers",
    pauses = "pauses",
    pause = "pause",
    come_and_go = "come-and-go",
    watch = "watch",
    watch_probed = "watch-probed",
    watch_smp = "watch-smp",
    watch_live = "watch-live",
    watch_many = "watch-many",
    watch_many_removed = "watch-many-removed",
    watch_reads = "watch-reads",
    watch_reads_smp = "watch-reads-smp",
    watch_vector = "watch-vector",
    watch_reads_vector = "watch-reads-vector",
    watch_odd = "watch-odd",
    watch_range = "watch-range",
    watch_hw = "watch-hw",
    watch_hw_probed = "watch-hw-probed",
    watch_hw_vector = "watch-hw-vector",
    watch_hw_smp = "watch-hw-smp",
    registers = "registers",
    registers_smp = "registers-smp",
    registers_fault = "registers-fault",
    registers_ring3 = "registers-ring3",
    registers_refused = "registers-refused",
    registers_live = "registers-live",
    looks_unprobed = "looks-unprobed",
    looks_kprobe = "looks-kprobe",
    looks_registers = "looks-registers",
    looks_kretprobe = "looks-kretprobe",
    looks_jump = "looks-jump",
    looks_watch = "looks-watch",
}

/// The cases that also run with hidden plants, where an emulator executes whole pages: those that differ most. The rigs run all.
const HIDDEN: [&str; 14] = [
    "calls",
    "own-int3",
    "fault",
    "ring3",
    "smp",
    "handlers",
    "own-steps",
    "returns",
    "raise",
    "enable",
    "live-smp",
    "come-and-go",
    "text-hidden",
    "looks-kprobe",
];

/// Runs a case with bytes of each kind that this KVM delivers, and with hidden plants if the case is one of [`HIDDEN`].
fn run(name: &str) {
    let case = contract::cases()
        .find(|case| case.name == name)
        .expect("a case");
    let mut ran = 0;
    for variant in case.variants() {
        let is_left_out = variant.way == Some(Way::HiddenPage) && !HIDDEN.contains(&name);
        if !is_left_out && variant.way.is_none_or(|way| BENCH.delivers(way)) {
            println!("{}", variant.name());
            (case.body)(&Here::new(&BENCH, variant.way, variant.cpus));
            ran += 1;
        }
    }
    assert!(ran > 0, "{:?}", BENCH.facts());
}

#[test]
fn each_case_is_a_test() {
    let known: BTreeSet<&str> = contract::cases().map(|case| case.name).collect();
    let tested: BTreeSet<&str> = TESTED.iter().copied().chain(NOT_HERE).collect();
    assert_eq!(known, tested);
    assert!(HIDDEN.iter().all(|name| TESTED.contains(name)));
}

/// A KVM that interprets ring 0 does not deliver these events from ring 3, or not like a processor, or not at all: the rigs run the cases.
const NOT_HERE: [&str; 6] = [
    "syscall",
    "intn",
    "int1",
    "instructions-ring3",
    "vector",
    "watch-vector",
];
