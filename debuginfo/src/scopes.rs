//! The functions of a unit and their inlined copies, as the compiler has nested them.

use std::ops::Range;

use address::Gva;
use gimli::{Attribute, AttributeValue, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::ranges;
use crate::reader::{Slice, damaged, offset_of};

/// The place of a line or of an inlined copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePlace {
    /// The link-time address.
    pub address: Gva,
    /// The function or inlined copy that the line belongs to; `None` for code of an assembler.
    pub(crate) scope: Option<ScopeEntry>,
}

/// The entries of a scope, as offsets in `.debug_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopeEntry {
    /// The function or inlined copy.
    pub(crate) own: usize,
    /// The function that has the code.
    pub(crate) function: usize,
}

/// The code of a function, or of an inlined copy within another scope.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) entries: ScopeEntry,
    /// In the compiler's order: code that is seldom executed comes last.
    pub(crate) ranges: Vec<Range<u64>>,
    /// The depth of the entry in the tree: greater than the depths of the scopes around.
    pub(crate) depth: isize,
    /// Of an inlined copy: the call.
    pub(crate) call: Option<Call>,
    /// The address of the first instruction.
    pub(crate) entry: u64,
}

impl Scope {
    /// The number of the range with `address`.
    pub(crate) fn range_of(&self, address: u64) -> usize {
        let mut ranges = self.ranges.iter();
        ranges
            .position(|range| range.contains(&address))
            .unwrap_or(self.ranges.len())
    }
}

/// The call in place of which an inlined copy is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// The index of the file in the unit's line program.
    pub(crate) file: u64,
    pub(crate) line: u64,
}

/// Calls `visit` for each function and inlined copy of `unit` that has code, with the attributes of the entry.
pub(crate) fn visit<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    budget: &mut Budget,
    mut visit: impl FnMut(Scope, &[Attribute<Slice<'a>>], &mut Budget) -> Result<(), LookupError>,
) -> Result<(), LookupError> {
    let failed = damaged(offset_of(unit));
    let mut entries = unit.entries_raw(None).map_err(&failed)?;
    let mut attributes = Vec::new();
    let mut function = 0;
    while !entries.is_empty() {
        let depth = entries.next_depth();
        let own = offset_of(unit).saturating_add(entries.next_offset().0);
        let Some(abbreviation) = entries.read_abbreviation().map_err(&failed)? else {
            budget.spend(1)?;
            continue;
        };
        let specifications = abbreviation.attributes();
        budget.spend(1 + specifications.len() / 8)?;
        let is_inlined = match abbreviation.tag() {
            gimli::DW_TAG_subprogram => false,
            gimli::DW_TAG_inlined_subroutine => true,
            _ => {
                entries.skip_attributes(specifications).map_err(&failed)?;
                continue;
            }
        };
        entries
            .read_attributes(specifications, &mut attributes)
            .map_err(&failed)?;
        let found = ranges::of_entry(unit, &attributes, budget, &failed)?;
        let Some(first) = found.first().map(|range| range.start) else {
            continue;
        };
        // A function may have declarations of others within.
        if !is_inlined {
            function = own;
        }
        let entry = entry_address(unit, &attributes, first).map_err(&failed)?;
        let scope = Scope {
            entries: ScopeEntry { own, function },
            entry: entry
                .filter(|&entry| ranges::hold(&found, entry))
                .unwrap_or(first),
            ranges: found,
            depth,
            call: is_inlined.then(|| call(&attributes)),
        };
        visit(scope, &attributes, budget)?;
    }
    Ok(())
}

/// `DW_AT_entry_pc`: an address, or, since DWARF 5, a distance from the base address, which is that of the first range.
fn entry_address<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    attributes: &[Attribute<Slice<'a>>],
    first: u64,
) -> gimli::Result<Option<u64>> {
    let named = |attribute: &&Attribute<_>| attribute.name() == gimli::DW_AT_entry_pc;
    let Some(attribute) = attributes.iter().find(named) else {
        return Ok(None);
    };
    match attribute.udata_value() {
        Some(distance) => Ok(first.checked_add(distance)),
        None => unit.attr_address(attribute.value()),
    }
}

fn call(attributes: &[Attribute<Slice<'_>>]) -> Call {
    let number = |name| {
        let named = attributes.iter().find(|attribute| attribute.name() == name);
        named.map_or(0, |attribute| match attribute.value() {
            AttributeValue::FileIndex(index) => index,
            _ => attribute.udata_value().unwrap_or(0),
        })
    };
    Call {
        file: number(gimli::DW_AT_call_file),
        line: number(gimli::DW_AT_call_line),
    }
}

/// For each of `addresses`, which are in ascending order, the indices of the scopes with code there: the innermost first, up to the function.
pub(crate) fn chains(
    scopes: &[Scope],
    addresses: &[u64],
    budget: &mut Budget,
) -> Result<Vec<Vec<usize>>, LookupError> {
    let mut chains = vec![Vec::new(); addresses.len()];
    for (index, scope) in scopes.iter().enumerate() {
        for range in &scope.ranges {
            let first = addresses.partition_point(|&address| address < range.start);
            let within = addresses[first..].partition_point(|&address| address < range.end);
            // In a damaged file, many ranges may have the same addresses.
            budget.spend(within)?;
            for chain in &mut chains[first..first + within] {
                chain.push(index);
            }
        }
    }
    for chain in &mut chains {
        chain.dedup();
        chain.sort_by_key(|&index| std::cmp::Reverse(scopes[index].depth));
        let function = chain.iter().position(|&index| scopes[index].call.is_none());
        chain.truncate(function.map_or(chain.len(), |function| function + 1));
    }
    Ok(chains)
}
