//! Snippets of every kind.
//!
//! Most are random bytes that decode to something that a snippet may be (`anything`), with a state in which it has
//! something to work on (`meet`). What random bytes seldom hit, or must not be let loose on, is written out (`system`,
//! `undefined`).

mod anything;
mod meet;
mod system;
mod undefined;

use introspect::Gva;
use introspect::insn::decode;

use super::layout::{CODE_BYTES, Layout};
use super::random::Random;
use super::snippet::{Snippet, State};

/// What reads and writes memory that may not be written. The fault is that of a write; in QEMU's TCG that of a read.
const MODIFY_BEYOND: &str = "modify beyond";

/// A snippet for the slot at `at`; `None` when what came up is nothing to be run.
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
