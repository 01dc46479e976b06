//! Where execution goes once places are patched.

use super::{
    alternatives::{self, Alternative},
    tables::Tables,
};
use crate::insn::boundaries;
use crate::{Gva, ImageSource, SymbolTable};

/// A jump label: the site, the target, and the key.
const JUMP_LABEL_BYTES: usize = 16;

/// Where jump labels and the replacements of alternatives may branch to, in no order. Whether a place is patched is not
/// asked.
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

/// The targets of the branches that an alternative may put in place, which may be within itself.
fn replaced(source: &dyn ImageSource, alternative: &Alternative, targets: &mut Vec<Gva>) {
    let start = alternative.replacement;
    let mut code = vec![0; usize::from(alternative.replacement_len)];
    if source.read_linked(start, &mut code).is_err() {
        return;
    }
    // Where the bytes are no code, as in an address that is put in place, nothing branches.
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
