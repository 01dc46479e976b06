//! What can be at a function, and what it is compared with.

use std::any::Any;
use std::sync::Arc;

use introspect::Gva;
use probes::{Action, Handler, HitContext, NewProbe, PreOutcome, ReturnHandler};

use crate::contract::new_probe;

/// A function of the test guest, and what is at it.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// What it is called in the lines.
    pub key: &'static str,
    /// The same function with nothing at it, whose time is taken off; `None` for such a one.
    pub without: Option<&'static str>,
    /// What it is called in the table.
    pub title: &'static str,
    /// VM exits a hit, where the engine does not count them itself.
    pub exits: Option<u64>,
    /// Instructions that the guest's processor begins because of a hit, those that leave the guest and the probed one
    /// included; counted in the code.
    pub instructions: Option<u64>,
    probes: fn() -> Vec<NewProbe>,
}

const fn way(
    key: &'static str,
    without: &'static str,
    title: &'static str,
    instructions: u64,
    probes: fn() -> Vec<NewProbe>,
) -> Way {
    Way {
        key,
        without: Some(without),
        title,
        exits: None,
        instructions: Some(instructions),
        probes,
    }
}

const fn bare(key: &'static str, title: &'static str) -> Way {
    Way {
        key,
        without: None,
        title,
        exits: Some(0),
        instructions: None,
        probes: Vec::new,
    }
}

/// In the order in which the scenario `bench` of the test guest calls their functions.
pub const WAYS: [Way; 13] = [
    bare("entry", "a call of the function, no probe"),
    Way {
        exits: Some(1),
        ..way("floor", "entry", "floor: `out` to a device", 1, Vec::new)
    },
    way(
        "jumped",
        "entry",
        "o: kprobe, counted, by a jump",
        6,
        || vec![counted("kprobe:bm_jumped")],
    ),
    way("counted", "entry", "k: kprobe, counted", 1, || {
        vec![counted("kprobe:bm_counted")]
    }),
    way("told", "entry", "k: kprobe, told as an event", 1, || {
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
            vec![NewProbe {
                action: Action::Handle(Arc::new(ReadsStack)),
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
                NewProbe {
                    action: Action::HandleReturn(Arc::new(Looks)),
                    ..new_probe("kretprobe:bm_both")
                },
            ]
        },
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
];

impl Way {
    /// The probes at its function.
    #[must_use]
    pub fn probes(&self) -> Vec<NewProbe> {
        (self.probes)()
    }
}

pub(super) fn counted(spec: &str) -> NewProbe {
    NewProbe {
        action: Action::Count,
        ..new_probe(spec)
    }
}

fn handled(spec: &str, post: bool) -> NewProbe {
    NewProbe {
        action: Action::Handle(Arc::new(Reads { post })),
        ..new_probe(spec)
    }
}

/// A handler that looks at the registers.
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

/// A handler that looks at the guest's memory, as a return probe does at its function's entry.
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
struct Looks;

impl ReturnHandler for Looks {
    fn ret(&self, hit: &mut HitContext<'_>, _data: Box<dyn Any + Send>) {
        std::hint::black_box(hit.regs().rax);
    }
}
