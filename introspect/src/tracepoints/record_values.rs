//! The values of the fields of a record. The guest has made the record: a field may be outside, and fields may share bytes.

use std::sync::Arc;

use super::field_type::{Content, DynamicBase, FieldType};
use super::record_layout::{RecordField, RecordLayout};

/// The bytes of all texts of a record. Texts that share no bytes fit.
const MAX_TEXT_BYTES: usize = 4096;
/// The elements of all arrays of a record. Many events may wait for a reader.
const MAX_ELEMENTS: usize = 256;
/// The word of a dynamic field.
const LOCATION_BYTES: usize = 4;

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Integer(Integer),
    /// A pointer.
    Address(u64),
    /// A text. Bytes that are no UTF-8 are U+FFFD.
    Text(String),
    /// The elements of an array.
    Integers(Vec<Integer>),
    /// The field is outside of the record, or the record has more text or elements than the limit.
    Unknown,
}

/// An integer of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integer {
    /// With a sign.
    Signed(i64),
    /// Without a sign.
    Unsigned(u64),
}

impl RecordLayout {
    /// The names and values of the fields, in order.
    #[must_use]
    pub fn values(&self, record: &[u8]) -> Vec<(Arc<str>, FieldValue)> {
        let mut reader = Reader {
            record,
            text: MAX_TEXT_BYTES,
            elements: MAX_ELEMENTS,
        };
        let fields = self.fields.iter();
        let value = |field: &RecordField| {
            let value = reader.value(field).unwrap_or(FieldValue::Unknown);
            (Arc::clone(&field.name), value)
        };
        fields.map(value).collect()
    }
}

struct Reader<'r> {
    record: &'r [u8],
    /// The bytes that texts may still have.
    text: usize,
    /// The elements that arrays may still have.
    elements: usize,
}

impl<'r> Reader<'r> {
    fn value(&mut self, field: &RecordField) -> Option<FieldValue> {
        let bytes = self.bytes(field.offset, field.size)?;
        match field.ty {
            FieldType::Bool => Some(FieldValue::Bool(number(bytes)? != 0)),
            FieldType::Integer { is_signed } => integer(bytes, is_signed).map(FieldValue::Integer),
            FieldType::Pointer => Some(FieldValue::Address(number(bytes)?)),
            FieldType::Array(content) => self.array(bytes, content),
            FieldType::Dynamic { from, content } => {
                let [start_low, start_high, len_low, len_high] = *bytes.as_array()?;
                let start = usize::from(u16::from_le_bytes([start_low, start_high]));
                let len = usize::from(u16::from_le_bytes([len_low, len_high]));
                let base = match from {
                    DynamicBase::Record => 0,
                    DynamicBase::BehindWord => field.offset.checked_add(LOCATION_BYTES)?,
                };
                let bytes = self.bytes(base.checked_add(start)?, len)?;
                self.array(bytes, content)
            }
        }
    }

    fn bytes(&self, offset: usize, len: usize) -> Option<&'r [u8]> {
        self.record.get(offset..offset.checked_add(len)?)
    }

    fn array(&mut self, bytes: &[u8], content: Content) -> Option<FieldValue> {
        match content {
            Content::Text => {
                let end = bytes.iter().position(|byte| *byte == 0);
                let text = bytes.get(..end.unwrap_or(bytes.len()))?;
                self.text = self.text.checked_sub(text.len())?;
                Some(FieldValue::Text(String::from_utf8_lossy(text).into_owned()))
            }
            Content::Integers {
                bytes: size,
                is_signed,
            } => {
                let elements = bytes.chunks_exact(size);
                self.elements = self.elements.checked_sub(elements.len())?;
                let values = elements.map(|element| integer(element, is_signed));
                values.collect::<Option<_>>().map(FieldValue::Integers)
            }
        }
    }
}

fn integer(bytes: &[u8], is_signed: bool) -> Option<Integer> {
    let number = number(bytes)?;
    if !is_signed {
        return Some(Integer::Unsigned(number));
    }
    let unused = u32::try_from(8_usize.checked_sub(bytes.len())?).ok()? * 8;
    let shifted = number.checked_shl(unused)?.cast_signed();
    Some(Integer::Signed(shifted.checked_shr(unused)?))
}

/// The number of up to 8 bytes.
fn number(bytes: &[u8]) -> Option<u64> {
    let mut wide = [0; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(wide))
}

#[cfg(test)]
mod tests {
    use address::Gva;

    use super::*;

    fn layout(fields: &[(usize, usize, FieldType)]) -> RecordLayout {
        let field = |(offset, size, ty): &(usize, usize, FieldType)| RecordField {
            name: "field".into(),
            offset: *offset,
            size: *size,
            ty: *ty,
        };
        RecordLayout {
            function: Gva(0),
            fields: fields.iter().map(field).collect(),
        }
    }

    fn values(fields: &[(usize, usize, FieldType)], record: &[u8]) -> Vec<FieldValue> {
        let values = layout(fields).values(record);
        values.into_iter().map(|(_, value)| value).collect()
    }

    const SIGNED: FieldType = FieldType::Integer { is_signed: true };
    const UNSIGNED: FieldType = FieldType::Integer { is_signed: false };
    const BYTES: Content = Content::Integers {
        bytes: 1,
        is_signed: false,
    };

    const fn dynamic(from: DynamicBase, content: Content) -> FieldType {
        FieldType::Dynamic { from, content }
    }

    #[test]
    fn values_have_the_size_and_the_sign_of_their_fields() {
        let record = [
            0xfe, 0xff, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ];
        let fields = [
            (0, 2, SIGNED),
            (0, 2, UNSIGNED),
            (2, 1, FieldType::Bool),
            (3, 8, SIGNED),
            (3, 8, FieldType::Pointer),
        ];
        let expected = [
            FieldValue::Integer(Integer::Signed(-2)),
            FieldValue::Integer(Integer::Unsigned(0xfffe)),
            FieldValue::Bool(true),
            FieldValue::Integer(Integer::Signed(-1)),
            FieldValue::Address(u64::MAX),
        ];
        assert_eq!(values(&fields, &record), expected);
    }

    #[test]
    fn text_ends_at_a_zero_or_at_the_end_of_its_array() {
        let text = FieldType::Array(Content::Text);
        let found = values(&[(0, 4, text), (4, 2, text)], b"ab\0xyz");
        let expected = ["ab", "yz"].map(|text| FieldValue::Text(text.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn dynamic_array_is_where_its_word_says() {
        let record = [8, 0, 3, 0, 3, 0, 2, 0, b's', b'h', 0, 7, 9];
        let fields = [
            (0, 4, dynamic(DynamicBase::Record, Content::Text)),
            (4, 4, dynamic(DynamicBase::BehindWord, BYTES)),
        ];
        let expected = [
            FieldValue::Text("sh".to_owned()),
            FieldValue::Integers(vec![Integer::Unsigned(7), Integer::Unsigned(9)]),
        ];
        assert_eq!(values(&fields, &record), expected);
    }

    #[test]
    fn field_outside_of_the_record_is_unknown() {
        let record = [4, 0, 1, 0];
        let fields = [
            (0, 4, dynamic(DynamicBase::Record, Content::Text)),
            (0, 4, dynamic(DynamicBase::BehindWord, BYTES)),
            (2, 4, UNSIGNED),
            (usize::MAX, 4, UNSIGNED),
        ];
        assert_eq!(values(&fields, &record), vec![FieldValue::Unknown; 4]);
    }

    #[test]
    fn fields_that_share_bytes_have_a_common_limit() {
        let mut record = vec![b'a'; 4096];
        let text = dynamic(DynamicBase::Record, Content::Text);
        record[..4].copy_from_slice(&[4, 0, 0xfc, 0x0f]);
        let texts = values(&[(0, 4, text), (0, 4, text)], &record);
        assert!(matches!(&texts[0], FieldValue::Text(text) if text.len() == 4092));
        assert_eq!(texts[1], FieldValue::Unknown);
        let lists = [(0, 200, FieldType::Array(BYTES)); 2];
        let lists = values(&lists, &record);
        assert!(matches!(&lists[0], FieldValue::Integers(list) if list.len() == 200));
        assert_eq!(lists[1], FieldValue::Unknown);
    }
}
