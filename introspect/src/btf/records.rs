//! The records of a blob: found once, then read in place.
//!
//! The blob of a module continues the kernel's: the kernel's types and strings come first in the numbers of types and in the offsets of
//! strings.

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
    /// The records before those of the blob.
    base: Option<Arc<Records>>,
    /// The offsets of the blob's records, in the order of their types.
    pub(super) offsets: Box<[u32]>,
    /// Whether the records fill the type section to the end.
    pub(super) complete: bool,
}

impl Records {
    /// Reads the header of `blob` and finds the records. They continue the records of `base`.
    pub(super) fn find(blob: Arc<[u8]>, base: Option<Arc<Records>>) -> Result<Self, BtfError> {
        if blob.len() > MAX_BLOB_BYTES {
            return Err(BtfError::TooLarge {
                bytes: blob.len() as u64,
            });
        }
        if base.as_ref().is_some_and(|base| !base.complete) {
            return Err(BtfError::IncompleteBase);
        }
        let header = Header::parse(&blob)?;
        let (offsets, complete) = find_records(&blob, &header);
        Ok(Self {
            blob,
            header,
            base,
            offsets: offsets.into(),
            complete,
        })
    }

    /// The record of the type `ty`; `None` if no record has the number.
    pub(super) fn record(&self, ty: TypeId) -> Option<Record<'_>> {
        let index = usize::try_from(ty.0.checked_sub(1)?).ok()?;
        let Some(own) = index.checked_sub(self.base_types()) else {
            return self.base.as_ref()?.record(ty);
        };
        let at = *self.offsets.get(own)? as usize;
        Record::read(&self.blob, &self.header, at)
    }

    /// The number of the base's types.
    fn base_types(&self) -> usize {
        self.base.as_ref().map_or(0, |base| base.len())
    }

    /// Whether there is a base, and `ty` is none of the base's types.
    pub(super) fn is_above_base(&self, ty: TypeId) -> bool {
        self.base.is_some() && ty.0 as usize > self.base_types()
    }

    /// The number of types, those of the base included.
    pub(super) fn len(&self) -> usize {
        self.base_types() + self.offsets.len()
    }

    /// The length of the string section, the base's included.
    pub(super) fn strings_len(&self) -> usize {
        let base = self.base.as_ref().map_or(0, |base| base.strings_len());
        base + self.header.strings.len()
    }

    /// The string at an offset of the string section; `None` if the string is empty, too long, not
    /// UTF-8, or has a control character: names in C have none, and lists of names have a name a line.
    pub(super) fn string(&self, offset: u32) -> Option<&str> {
        let mut own = offset as usize;
        if let Some(base) = &self.base {
            match own.checked_sub(base.strings_len()) {
                Some(behind) => own = behind,
                None => return base.string(offset),
            }
        }
        let strings = self.blob.get(self.header.strings.clone())?;
        let rest = strings.get(own..)?;
        let window = &rest[..rest.len().min(MAX_NAME_BYTES)];
        let len = window.iter().position(|&byte| byte == 0)?;
        let text = std::str::from_utf8(&window[..len]).ok()?;
        let is_name = !text.is_empty() && !text.bytes().any(|byte| byte.is_ascii_control());
        is_name.then_some(text)
    }

    /// Whether the search for the names of the blob's types reads at most `most` bytes. Many records may point to one long string.
    pub(super) fn names_fit(&self, most: usize) -> bool {
        let records = self.offsets.iter();
        let records = records.filter_map(|at| Record::read(&self.blob, &self.header, *at as usize));
        let named = records.filter(|record| record.name != 0);
        let read = named.map(|record| self.string(record.name).map_or(MAX_NAME_BYTES, str::len));
        let left = read.into_iter().try_fold(most, usize::checked_sub);
        left.is_some()
    }

    /// The blob's types with a name, in the order of their numbers.
    pub(super) fn named_types(&self) -> impl Iterator<Item = (TypeId, &str)> {
        // A blob has at most 2^21 types.
        let first = u32::try_from(self.base_types()).map_or(u32::MAX, |base| base + 1);
        let numbers = (first..).take(self.offsets.len()).map(TypeId);
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
