//! Snippets of every kind.
//!
//! Most are random bytes that decode to an allowed instruction (`anything`), with a state in which the instruction has data to work on
//! (`meet`). Instructions that random bytes seldom hit, or that must not run with random operands, are written out (`system`,
//! `undefined`).

mod anything;
mod meet;
mod system;
mod undefined;

use address::Gva;
use introspect::insn::decode;
use reference::Random;

use super::layout::{CODE_BYTES, Layout};
use super::snippet::{Snippet, State};

/// The kind of snippets that read and write memory that cannot be written. The fault is the fault of a write; in QEMU's TCG the fault of
/// a read.
const MODIFY_BEYOND: &str = "modify beyond";

/// A snippet for the slot at `at`; `None` if the random bytes cannot be run.
pub(super) fn snippet(random: &mut Random, layout: &Layout, at: u64) -> Option<Snippet> {
    let mut state = State::random(random, layout);
    let (kind, code) = match random.below(20) {
        0..=3 => system::code(random, layout, at, &mut state),
        4 => undefined::code(random),
        5..=9 => (
            "sequence",
            anything::sequence(random, layout, at, &mut state)?,
        ),
        _ => ("single", anything::single(random, layout, at, &mut state)?),
    };
    let modifies = matches!(kind, "single" | "sequence")
        && decode(&code, Gva(at)).is_ok_and(|first| meet::modifies_beyond(layout, &first, &state));
    let kind = if modifies { MODIFY_BEYOND } else { kind };
    (code.len() <= CODE_BYTES).then_some(Snippet {
        kind,
        at,
        code,
        state,
        skipped: false,
    })
}
