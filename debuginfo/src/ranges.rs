//! The addresses of an entry of the tree.

use std::ops::Range;

use gimli::{Attribute, AttributeValue, UnitRef};

use crate::budget::Budget;
use crate::error::LookupError;
use crate::reader::Slice;

/// The ranges of the entry with `attributes`, empty ones left out; those of code that the linker has discarded begin at 0.
pub(crate) fn of_entry<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    attributes: &[Attribute<Slice<'a>>],
    budget: &mut Budget,
    failed: &impl Fn(gimli::Error) -> LookupError,
) -> Result<Vec<Range<u64>>, LookupError> {
    let (mut low, mut high, mut size) = (None, None, None);
    for attribute in attributes {
        match (attribute.name(), attribute.value()) {
            (gimli::DW_AT_low_pc, value) => low = unit.attr_address(value).map_err(failed)?,
            (gimli::DW_AT_high_pc, AttributeValue::Udata(bytes)) => size = Some(bytes),
            (gimli::DW_AT_high_pc, value) => high = unit.attr_address(value).map_err(failed)?,
            (gimli::DW_AT_ranges, value) => {
                let offset = unit.attr_ranges_offset(value).map_err(failed)?;
                let Some(offset) = offset else {
                    continue;
                };
                // Not each entry of a list makes a range, and many lists may share entries.
                let mut entries = unit.raw_ranges(offset).map_err(failed)?;
                while entries.next().map_err(failed)?.is_some() {
                    budget.spend(1)?;
                }
                let mut list = unit.ranges(offset).map_err(failed)?;
                let mut found = Vec::new();
                while let Some(range) = list.next().map_err(failed)? {
                    found.extend(kept(range.begin, range.end));
                }
                return Ok(found);
            }
            _ => (),
        }
    }
    let end = low.and_then(|low: u64| size.map(|size| low.saturating_add(size)).or(high));
    Ok(low
        .zip(end)
        .and_then(|(low, end)| kept(low, end))
        .into_iter()
        .collect())
}

fn kept(begin: u64, end: u64) -> Option<Range<u64>> {
    (0 < begin && begin < end).then_some(begin..end)
}

/// Whether one of `ranges` has `address`.
pub(crate) fn hold(ranges: &[Range<u64>], address: u64) -> bool {
    ranges.iter().any(|range| range.contains(&address))
}
