//! The format of the blob: the header, the kinds of records, and the lengths of records.

use std::ops::Range;

use super::BtfError;

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
/// Up to the length of the string section.
const MIN_HEADER_BYTES: usize = 24;
/// From 7.1 on the header may continue with the offset and length of a layout section, which holds
/// the record lengths of the kinds.
const HEADER_BYTES_WITH_LAYOUT: usize = 32;
const LAYOUT_BYTES: usize = 4;
/// The name, the info word, and a size or a type.
pub(super) const RECORD_BYTES: usize = 12;

pub(super) const INT: u8 = 1;
pub(super) const POINTER: u8 = 2;
pub(super) const ARRAY: u8 = 3;
pub(super) const STRUCT: u8 = 4;
pub(super) const UNION: u8 = 5;
pub(super) const ENUM: u8 = 6;
pub(super) const FORWARD: u8 = 7;
pub(super) const TYPEDEF: u8 = 8;
pub(super) const VOLATILE: u8 = 9;
pub(super) const CONST: u8 = 10;
pub(super) const RESTRICT: u8 = 11;
pub(super) const FUNCTION: u8 = 12;
pub(super) const PROTOTYPE: u8 = 13;
pub(super) const VARIABLE: u8 = 14;
pub(super) const DATA_SECTION: u8 = 15;
pub(super) const FLOAT: u8 = 16;
pub(super) const TYPE_TAG: u8 = 18;
pub(super) const ENUM64: u8 = 19;

/// The body behind a record of a kind: `fixed` bytes, and `each` bytes for each element.
#[derive(Clone, Copy)]
struct Body {
    fixed: u8,
    each: u8,
}

const fn body(fixed: u8, each: u8) -> Body {
    Body { fixed, each }
}

/// By kind, from 0 ("unknown", which has no records) to `ENUM64`.
const BODIES: [Body; 20] = [
    body(0, 0),
    body(4, 0),
    body(0, 0),
    body(12, 0),
    body(0, 12),
    body(0, 12),
    body(0, 8),
    body(0, 0),
    body(0, 0),
    body(0, 0),
    body(0, 0),
    body(0, 0),
    body(0, 0),
    body(0, 8),
    body(4, 0),
    body(0, 12),
    body(0, 0),
    body(4, 0),
    body(0, 0),
    body(0, 12),
];

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The sections' ranges in the blob.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) types: Range<usize>,
    pub(super) strings: Range<usize>,
    /// Empty if the header ends before the layout section's fields, or if the section is out of
    /// bounds.
    layouts: Range<usize>,
}

impl Header {
    pub(super) fn parse(blob: &[u8]) -> Result<Self, BtfError> {
        let outside = |section| BtfError::Section {
            section,
            bytes: blob.len(),
        };
        let word = |at| u32_at(blob, at).ok_or(outside("header"));
        let first = word(0)?;
        let [low, high, version, _] = first.to_le_bytes();
        let magic = u16::from_le_bytes([low, high]);
        if magic != MAGIC || version != VERSION {
            return Err(BtfError::Header { magic, version });
        }
        let header_len = word(4)? as usize;
        let section = |at, name| {
            let (offset, len) = (word(at)? as usize, word(at + 4)? as usize);
            let start = header_len.checked_add(offset);
            let range = start.and_then(|start| Some(start..start.checked_add(len)?));
            range
                .filter(|range| range.end <= blob.len())
                .ok_or(outside(name))
        };
        if header_len < MIN_HEADER_BYTES {
            return Err(outside("header"));
        }
        // The parser ignores a layout section out of bounds.
        let layouts = if header_len >= HEADER_BYTES_WITH_LAYOUT {
            section(24, "layout").unwrap_or(0..0)
        } else {
            0..0
        };
        Ok(Self {
            types: section(8, "type")?,
            strings: section(16, "string")?,
            layouts,
        })
    }

    /// The number of bytes behind the fixed part of a record of `kind` with `count` elements; `None`
    /// for a kind in neither `BODIES` nor the blob's layout section.
    pub(super) fn body_len(&self, blob: &[u8], kind: u8, count: usize) -> Option<usize> {
        let known = BODIES.get(usize::from(kind)).copied();
        let body = known.or_else(|| {
            let layouts = blob.get(self.layouts.clone())?;
            let at = usize::from(kind) * LAYOUT_BYTES;
            let layout = layouts.get(at..at + LAYOUT_BYTES)?;
            Some(body(layout[0], layout[1]))
        })?;
        let elements = count.checked_mul(usize::from(body.each))?;
        elements.checked_add(usize::from(body.fixed))
    }
}
