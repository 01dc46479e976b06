//! gimli's view of the sections.

use gimli::{AttributeValue, EndianSlice, LittleEndian, UnitOffset, UnitRef};

use crate::error::LookupError;

/// Bytes of a section.
pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// An error of the unit at `offset`.
pub(crate) fn damaged(offset: usize) -> impl Fn(gimli::Error) -> LookupError {
    move |source| LookupError::Dwarf {
        unit: offset as u64,
        source,
    }
}

/// The offset of `unit` in `.debug_info`.
pub(crate) fn offset_of(unit: UnitRef<'_, Slice<'_>>) -> usize {
    unit.header.debug_info_offset().map_or(0, |offset| offset.0)
}

/// The offset in `.debug_info` of the entry that an attribute of `unit` with this `value` refers to.
pub(crate) fn referred(
    unit: UnitRef<'_, Slice<'_>>,
    value: &AttributeValue<Slice<'_>>,
) -> Option<usize> {
    match value {
        AttributeValue::UnitRef(UnitOffset(within)) => offset_of(unit).checked_add(*within),
        AttributeValue::DebugInfoRef(offset) => Some(offset.0),
        _ => None,
    }
}
