//! The records of a blob: found once, then read in place.

use std::sync::Arc;

use super::{
    BtfError, TypeId,
    format::{Header, RECORD_BYTES},
    record::Record,
};

/// The largest kernel's take 6 MB.
const MAX_BLOB_BYTES: usize = 64 << 20;
/// The kernel's own limit is 2^20.
const MAX_TYPES: usize = 1 << 21;
/// The kernel's own limit, KSYM_NAME_LEN, is 512.
const MAX_NAME_BYTES: usize = 512;

/// A blob, and the offsets of its records.
pub(super) struct Records {
    pub(super) blob: Arc<[u8]>,
    header: Header,
    /// The offsets of the records of type 1, 2, … in the blob.
    pub(super) offsets: Box<[u32]>,
    /// Whether the records fill the type section to the end.
    pub(super) complete: bool,
}

impl Records {
    /// Reads the header of `blob` and finds the records.
    pub(super) fn find(blob: Arc<[u8]>) -> Result<Self, BtfError> {
        if blob.len() > MAX_BLOB_BYTES {
            return Err(BtfError::TooLarge {
                bytes: blob.len() as u64,
            });
        }
        let header = Header::parse(&blob)?;
        let (offsets, complete) = find_records(&blob, &header);
        Ok(Self {
            blob,
            header,
            offsets: offsets.into(),
            complete,
        })
    }

    /// The record of the type `ty`; `None` if no record has the number.
    pub(super) fn record(&self, ty: TypeId) -> Option<Record<'_>> {
        let index = usize::try_from(ty.0.checked_sub(1)?).ok()?;
        let at = *self.offsets.get(index)? as usize;
        Record::read(&self.blob, &self.header, at)
    }

    /// The string at an offset of the string section; `None` if the string is empty, too long or
    /// not UTF-8.
    pub(super) fn string(&self, offset: u32) -> Option<&str> {
        let strings = self.blob.get(self.header.strings.clone())?;
        let rest = strings.get(offset as usize..)?;
        let window = &rest[..rest.len().min(MAX_NAME_BYTES)];
        let len = window.iter().position(|&byte| byte == 0)?;
        let text = std::str::from_utf8(&window[..len]).ok()?;
        (!text.is_empty()).then_some(text)
    }

    /// All types with a name, in the order of their numbers.
    pub(super) fn named_types(&self) -> impl Iterator<Item = (TypeId, &str)> {
        let numbers = (1_u32..).take(self.offsets.len()).map(TypeId);
        numbers.filter_map(|ty| Some((ty, self.string(self.record(ty)?.name)?)))
    }
}

/// The offset of each record, and whether the records fill the section to the end.
fn find_records(blob: &[u8], header: &Header) -> (Vec<u32>, bool) {
    let end = header.types.end;
    let mut at = header.types.start;
    let mut offsets = Vec::new();
    while at + RECORD_BYTES <= end && offsets.len() < MAX_TYPES {
        let (Some(record), Ok(start)) = (Record::read(blob, header, at), u32::try_from(at)) else {
            break;
        };
        offsets.push(start);
        at += record.len();
    }
    (offsets, at == end)
}
