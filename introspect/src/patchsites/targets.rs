//! The targets of execution after patching.

use address::Gva;

use super::{
    alternatives::{self, Alternative},
    tables::Tables,
};
use crate::insn::boundaries;
use crate::{ImageSource, SymbolTable};

/// A jump label: the site, the target, and the key.
const JUMP_LABEL_BYTES: usize = 16;

/// The possible targets of jump labels and of branches in the replacements of alternatives, in no order. The result does not
/// depend on whether a site is patched.
#[must_use]
pub(crate) fn patched_targets(source: &dyn ImageSource, symbols: &SymbolTable) -> Vec<Gva> {
    let Some(tables) = Tables::new(source, symbols) else {
        return Vec::new();
    };
    let labels = tables.between("__start___jump_table", "__stop___jump_table");
    let entries = labels.entries(JUMP_LABEL_BYTES, 8);
    let mut targets: Vec<Gva> = entries.filter_map(|at| labels.relative(at + 4)).collect();
    for alternative in alternatives::read(&tables) {
        replaced(source, &alternative, &mut targets);
    }
    targets
}

/// The targets of the branches in an alternative's replacement, which may be inside the replacement.
fn replaced(source: &dyn ImageSource, alternative: &Alternative, targets: &mut Vec<Gva>) {
    let start = alternative.replacement;
    let mut code = vec![0; usize::from(alternative.replacement_len)];
    if source.read_linked(start, &mut code).is_err() {
        return;
    }
    // If the bytes are no code, as for an address as a replacement, the loop finds no branch.
    for decoded in boundaries(&code, start).map_while(Result::ok) {
        let Some(target) = decoded.branch_target() else {
            continue;
        };
        let within = target.offset_from(start);
        targets.push(match within.filter(|&offset| offset <= code.len() as u64) {
            Some(offset) => alternative.site.address.wrapping_add(offset),
            None => target,
        });
    }
}
