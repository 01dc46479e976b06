//! The probes of a measured function, and the function to compare with.

use std::any::Any;
use std::sync::Arc;

use address::Gva;
use manifest::program::{Aggregate, Filter};
use manifest::{Action, ProbeConfig};
use probes::{EngineAction, Handler, HitContext, PreOutcome, ReturnHandler};

use crate::contract::new_probe;

/// A function of the test guest, and the function's probes.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The name in the lines.
    pub key: &'static str,
    /// The same function without probes, whose time is subtracted; `None` for a function without probes.
    pub without: Option<&'static str>,
    /// The title in the table.
    pub title: &'static str,
    /// VM exits of a hit, if the engine does not count the exits.
    pub exits: Option<u64>,
    /// Instructions that the guest's processor begins because of a hit, with the instructions that exit and the probed instruction;
    /// counted in the code, the instructions of detours by the test `cost_of_a_hit_matches_the_overhead_table` in
    /// `detour/src/code/tests.rs`.
    pub instructions: Option<u64>,
    /// Whether a jump replaces the plant.
    pub jumps: bool,
    probes: fn() -> Vec<ProbeConfig<EngineAction>>,
}

const fn way(
    key: &'static str,
    without: &'static str,
    title: &'static str,
    instructions: u64,
    probes: fn() -> Vec<ProbeConfig<EngineAction>>,
) -> Way {
    Way {
        key,
        without: Some(without),
        title,
        exits: None,
        instructions: Some(instructions),
        jumps: false,
        probes,
    }
}

const fn jump(
    key: &'static str,
    title: &'static str,
    instructions: u64,
    probes: fn() -> Vec<ProbeConfig<EngineAction>>,
) -> Way {
    Way {
        jumps: true,
        ..way(key, "entry", title, instructions, probes)
    }
}

const fn bare(key: &'static str, title: &'static str) -> Way {
    Way {
        key,
        without: None,
        title,
        exits: Some(0),
        instructions: None,
        jumps: false,
        probes: Vec::new,
    }
}

/// In the order in which the scenario `bench` of the test guest calls their functions.
pub const WAYS: [Way; 18] = [
    bare("entry", "a call of the function, no probe"),
    Way {
        exits: Some(1),
        ..way("floor", "entry", "floor: `out` to a device", 1, Vec::new)
    },
    jump("jumped", "o: kprobe, counted, by a jump", 6, || {
        vec![counted("kprobe:bm_jumped")]
    }),
    way("counted", "entry", "k: kprobe, counted", 1, || {
        vec![counted("kprobe:bm_counted")]
    }),
    way("told", "entry", "k: kprobe, emitted as an event", 1, || {
        vec![new_probe("kprobe:bm_told")]
    }),
    way("handled", "entry", "k: kprobe, pre-handler", 1, || {
        vec![handled("kprobe:bm_handled", false)]
    }),
    way(
        "after",
        "entry",
        "k: kprobe, pre- and post-handler",
        1,
        || vec![handled("kprobe:bm_after", true)],
    ),
    way(
        "reads",
        "entry",
        "k: kprobe, pre-handler that reads the stack",
        1,
        || {
            vec![ProbeConfig {
                action: EngineAction::Handle(Arc::new(ReadsStack)),
                ..new_probe("kprobe:bm_reads")
            }]
        },
    ),
    way("returns", "entry", "r: return probe, counted", 2, || {
        vec![counted("kretprobe:bm_returns")]
    }),
    way(
        "both",
        "entry",
        "kr: kprobe and return probe with handlers",
        2,
        || {
            vec![
                handled("kprobe:bm_both", true),
                ProbeConfig {
                    action: EngineAction::HandleReturn(Arc::new(ReadsReturnValue)),
                    ..new_probe("kretprobe:bm_both")
                },
            ]
        },
    ),
    jump(
        "recorded",
        "o: kprobe, emitted as an event, by a jump (a record)",
        60,
        || vec![new_probe("kprobe:bm_recorded")],
    ),
    jump("hist", "o: histogram of an argument by a jump", 20, || {
        vec![histogram("kprobe:bm_hist")]
    }),
    jump(
        "filtered",
        "o: kprobe with a filter that turns the hit away",
        15,
        || {
            vec![ProbeConfig {
                filter: Some(parsed::<Filter>("arg0 == 0")),
                ..new_probe("kprobe:bm_filtered")
            }]
        },
    ),
    jump(
        "returns-recorded",
        "ro: return probe whose entry is recorded (counted)",
        67,
        || vec![counted("kretprobe:bm_returns_recorded")],
    ),
    bare("processor", "a call of a function with `rdtsc`, no probe"),
    way(
        "copied",
        "processor",
        "b: kprobe on `rdtsc`, by a copy",
        3,
        || vec![counted("kprobe:bm_copied")],
    ),
    way(
        "in-place",
        "processor",
        "s: kprobe on `rdtsc` with a post-handler, in place",
        3,
        || vec![handled("kprobe:bm_in_place", true)],
    ),
    way(
        "returns-copied",
        "processor",
        "rb: return probe of a function that begins with `rdtsc`, by a copy, counted",
        4,
        || vec![counted("kretprobe:bm_returns_copied")],
    ),
];

impl Way {
    /// The probes of the function.
    #[must_use]
    pub fn probes(&self) -> Vec<ProbeConfig<EngineAction>> {
        (self.probes)()
    }
}

pub(super) fn counted(spec: &str) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: Action::Count.into(),
        ..new_probe(spec)
    }
}

pub(super) fn histogram(spec: &str) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: Action::Aggregate(parsed::<Aggregate>("hist(arg0)")).into(),
        ..new_probe(spec)
    }
}

fn handled(spec: &str, post: bool) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: EngineAction::Handle(Arc::new(Reads { post })),
        ..new_probe(spec)
    }
}

fn parsed<P: std::str::FromStr>(program: &str) -> P
where
    P::Err: std::fmt::Debug,
{
    program.parse().expect(program)
}

/// A handler that reads the registers.
struct Reads {
    post: bool,
}

impl Handler for Reads {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        std::hint::black_box(hit.regs().rdi);
        PreOutcome::Continue
    }

    fn has_post(&self) -> bool {
        self.post
    }

    fn post(&self, hit: &mut HitContext<'_>) {
        std::hint::black_box(hit.regs().rax);
    }
}

/// A handler that reads the guest's memory, as a return probe does at a function's entry.
struct ReadsStack;

impl Handler for ReadsStack {
    fn pre(&self, hit: &mut HitContext<'_>) -> PreOutcome {
        let top = Gva(hit.regs().rsp);
        std::hint::black_box(hit.read_u64(top).ok());
        PreOutcome::Continue
    }

    fn has_post(&self) -> bool {
        false
    }
}

/// The same for returns.
struct ReadsReturnValue;

impl ReturnHandler for ReadsReturnValue {
    fn ret(&self, hit: &mut HitContext<'_>, _data: Box<dyn Any + Send>) {
        std::hint::black_box(hit.regs().rax);
    }
}
