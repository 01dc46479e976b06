//! A type's record: the fixed part, and the elements behind the fixed part, read in place.
//!
//! Names are offsets in the string section: [`Records`](super::records::Records) finds the text.

use super::{
    Int, TypeId,
    format::{self, Header, RECORD_BYTES, u32_at},
};

/// The record of a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'b> {
    /// The name's offset in the string section.
    pub(super) name: u32,
    pub(super) kind: u8,
    /// The meaning depends on the kind: in a struct, the flag says that the offsets hold bit-field
    /// sizes.
    flag: bool,
    /// The size in bytes, or a type.
    pub(super) size_or_type: u32,
    /// The bytes behind the fixed part, as many as the record's kind and count ask for.
    body: &'b [u8],
}

/// A member of a struct or union.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordMember {
    /// The name's offset in the string section.
    pub(super) name: u32,
    pub(super) ty: TypeId,
    /// From the beginning of the struct holding the member.
    pub(super) bit_offset: u64,
    /// `None` if the record does not mark a bit field.
    pub(super) bit_size: Option<u8>,
}

impl<'b> Record<'b> {
    /// The record at offset `at` of the blob. The count had 16 bits and the kind 5 up to 7.0, and
    /// the bits between were zero.
    ///
    /// `None` if the record does not end within the type section, or if the length of the kind's
    /// records is unknown.
    pub(super) fn read(blob: &'b [u8], header: &Header, at: usize) -> Option<Self> {
        let types = blob.get(..header.types.end)?;
        let info = u32_at(types, at.checked_add(4)?)?;
        let [_, _, _, high] = info.to_le_bytes();
        let kind = high & 0x7f;
        let len = header.body_len(blob, kind, (info & 0x00ff_ffff) as usize)?;
        let body = at.checked_add(RECORD_BYTES)?;
        Some(Self {
            name: u32_at(types, at)?,
            kind,
            flag: high & 0x80 != 0,
            size_or_type: u32_at(types, at.checked_add(8)?)?,
            body: types.get(body..body.checked_add(len)?)?,
        })
    }

    /// The bytes of the record, the elements included.
    pub(super) fn len(&self) -> usize {
        RECORD_BYTES + self.body.len()
    }

    /// The integer described by a record of kind `INT`.
    pub(super) fn int(&self) -> Option<Int> {
        let [bits, _, _, flags] = u32_at(self.body, 0)?.to_le_bytes();
        Some(Int {
            size_bytes: u64::from(self.size_or_type),
            bits,
            signed: flags & 1 != 0,
            boolean: flags & 4 != 0,
        })
    }

    /// The type and the number of the elements, by a record of kind `ARRAY`.
    pub(super) fn array(&self) -> Option<(TypeId, u32)> {
        let [element, _index, len] = self.elements().next()?;
        Some((TypeId(element), len))
    }

    /// The members in a record of kind `STRUCT` or `UNION`.
    pub(super) fn members(&self) -> impl Iterator<Item = RecordMember> + use<'b> {
        let flag = self.flag;
        self.elements().map(move |[name, ty, offset]| {
            let [low, middle, high, bits] = offset.to_le_bytes();
            let (bit_offset, bits) = if flag {
                (u32::from_le_bytes([low, middle, high, 0]), bits)
            } else {
                (offset, 0)
            };
            RecordMember {
                name,
                ty: TypeId(ty),
                bit_offset: u64::from(bit_offset),
                bit_size: (bits != 0).then_some(bits),
            }
        })
    }

    /// Whether a record of kind `ENUM` or `ENUM64` is marked as having numbers below zero.
    pub(super) fn is_signed_enum(&self) -> bool {
        matches!(self.kind, format::ENUM | format::ENUM64) && self.flag
    }

    /// The enumerators in a record of kind `ENUM` or `ENUM64`: the names' offsets, and the numbers.
    /// The record's flag marks an enum with numbers below zero; before 6.0 no enum had the flag.
    pub(super) fn enumerators(&self) -> impl Iterator<Item = (u32, i64)> + Clone + use<'b> {
        let flag = self.flag;
        let (narrow, wide) = if self.kind == format::ENUM64 {
            (None, Some(self.elements()))
        } else {
            (Some(self.elements()), None)
        };
        let narrow = narrow.into_iter().flatten().map(move |[name, value]| {
            if flag {
                (name, i64::from(value.cast_signed()))
            } else {
                (name, i64::from(value))
            }
        });
        let wide = wide.into_iter().flatten().map(|[name, low, high]| {
            let value = u64::from(high) << 32 | u64::from(low);
            (name, value.cast_signed())
        });
        narrow.chain(wide)
    }

    /// The parameters in a record of kind `PROTOTYPE`: the names' offsets, and the types.
    pub(super) fn params(&self) -> impl ExactSizeIterator<Item = (u32, TypeId)> + use<'b> {
        self.elements().map(|[name, ty]| (name, TypeId(ty)))
    }

    /// The variables in a record of kind `DATA_SECTION`: the variable, its offset in the section, and its size.
    pub(super) fn variables(&self) -> impl Iterator<Item = (TypeId, u32, u32)> + use<'b> {
        let is_section = self.kind == format::DATA_SECTION;
        let elements = is_section.then(|| self.elements());
        let elements = elements.into_iter().flatten();
        elements.map(|[variable, offset, size]| (TypeId(variable), offset, size))
    }

    /// The body, cut into elements of `WORDS` words.
    fn elements<const WORDS: usize>(
        &self,
    ) -> impl ExactSizeIterator<Item = [u32; WORDS]> + Clone + use<'b, WORDS> {
        let (words, _) = self.body.as_chunks::<4>();
        let (elements, _) = words.as_chunks::<WORDS>();
        elements.iter().map(|words| words.map(u32::from_le_bytes))
    }
}
