//! The variables of a scope whose blocks are around an address.

use address::Gva;
use gimli::{Attribute, UnitOffset, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::ranges;
use crate::reader::{Slice, damaged, offset_of};

/// Calls `visit` for each variable and parameter of the scope with the entry at `scope` of `.debug_info`, and of its blocks around `address`, with the
/// attributes of the entry. Variables of inlined copies in the scope are left out.
pub(super) fn visit<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    scope: usize,
    address: Gva,
    budget: &mut Budget,
    mut visit: impl FnMut(VariableKind, &[Attribute<Slice<'a>>], &mut Budget) -> Result<(), LookupError>,
) -> Result<(), LookupError> {
    let failed = damaged(offset_of(unit));
    let root = UnitOffset(scope.saturating_sub(offset_of(unit)));
    let mut entries = unit.entries_raw(Some(root)).map_err(&failed)?;
    let mut attributes = Vec::new();
    // Entries below this depth are not of blocks around the address.
    let mut skipped = None;
    let mut is_root = true;
    while !entries.is_empty() {
        let depth = entries.next_depth();
        if depth <= 0 && !is_root {
            break;
        }
        budget.spend(1)?;
        let Some(abbreviation) = entries.read_abbreviation().map_err(&failed)? else {
            continue;
        };
        let specifications = abbreviation.attributes();
        budget.spend(specifications.len() / 8)?;
        let is_within_skipped = skipped.is_some_and(|skipped| depth > skipped);
        let kind = match abbreviation.tag() {
            _ if is_root || is_within_skipped => None,
            gimli::DW_TAG_formal_parameter => Some(Kind::Variable(VariableKind::Parameter)),
            gimli::DW_TAG_variable => Some(Kind::Variable(VariableKind::Local)),
            gimli::DW_TAG_lexical_block => Some(Kind::Block),
            _ => None,
        };
        let Some(kind) = kind else {
            entries.skip_attributes(specifications).map_err(&failed)?;
            if !is_root && !is_within_skipped {
                skipped = Some(depth);
            }
            is_root = false;
            continue;
        };
        skipped = None;
        entries
            .read_attributes(specifications, &mut attributes)
            .map_err(&failed)?;
        match kind {
            Kind::Variable(kind) => visit(kind, &attributes, budget)?,
            Kind::Block => {
                let block = ranges::of_entry(unit, &attributes, budget, &failed)?;
                if !ranges::hold(&block, address.0) {
                    skipped = Some(depth);
                }
            }
        }
    }
    Ok(())
}

/// What a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum VariableKind {
    /// A parameter of the function or inlined copy.
    Parameter,
    /// A variable of the function or of a block.
    Local,
}

/// An entry that is read.
#[derive(Clone, Copy)]
enum Kind {
    Variable(VariableKind),
    Block,
}
