//! gimli's view of the sections.

use gimli::{EndianSlice, LittleEndian, UnitRef};

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
