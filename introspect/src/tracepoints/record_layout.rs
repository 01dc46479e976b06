//! The fields of the record of an event of ftrace: names, types and offsets.
//!
//! ```text
//!  trace_event_call { class ─▶ trace_event_class { probe ─▶ trace_event_raw_event_CLASS,
//!                                                  fields_array ─▶ trace_event_fields { type, name, size, align, is_signed } … { type 0 } } }
//! ```
//!
//! The guest lists the same fields in `tracing/events/GROUP/NAME/format`. The kernel computes the offsets as this module does: behind the common
//! header, each aligned.

use std::sync::Arc;

use address::Gva;
use thiserror::Error;

use super::field_type::FieldType;
use super::layout::is_name;
use super::module::Mapped;
use crate::btf::{BitField, Btf, Member};
use crate::image::ImageReader;
use crate::{ImageSource, PagingState, PhysMemory};

/// Stock kernels have at most 40.
const MAX_FIELDS: u64 = 128;
/// In place of a type: a function adds the fields.
const FUNCTION_TYPE: u64 = u64::MAX;
/// Records are at most a page.
const MAX_OFFSET: u64 = 4096;

/// A field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordField {
    /// The name.
    pub name: Arc<str>,
    /// The offset in the record, bytes.
    pub(super) offset: usize,
    /// The size in the record, bytes. A dynamic field has a word there.
    pub(super) size: usize,
    pub(super) ty: FieldType,
}

/// The record of an event of ftrace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// The function that writes the record, at its link-time address if in the kernel proper.
    pub function: Gva,
    /// The fields in order, without the common ones.
    pub fields: Arc<[RecordField]>,
}

/// Why the fields of an event are not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoLayout {
    /// The kernel's types do not describe its events.
    #[error("the kernel's types do not describe the fields of events")]
    Types,
    /// The description of the event cannot be read.
    #[error("the description of the event at {event} cannot be read")]
    Unreadable {
        /// The `trace_event_call`.
        event: Gva,
    },
    /// A function of the kernel makes the list of fields.
    #[error("a function of the kernel makes the list of fields of the event at {event}")]
    MadeByFunction {
        /// The `trace_event_call`.
        event: Gva,
    },
    /// The list of fields does not end.
    #[error("the event at {event} has more than {MAX_FIELDS} fields")]
    TooMany {
        /// The `trace_event_call`.
        event: Gva,
    },
    /// The name of a field is none, or another field has it.
    #[error("the event at {event} has a field without a name of its own")]
    Name {
        /// The `trace_event_call`.
        event: Gva,
    },
    /// A field is beyond the longest record.
    #[error("the field `{name}` of the event at {event} is beyond the longest record")]
    TooFar {
        /// The `trace_event_call`.
        event: Gva,
        /// The field.
        name: String,
    },
}

/// Offsets in the kernel's structures, bytes.
struct Offsets {
    class: u64,
    probe: u64,
    fields: u64,
    ty: u64,
    name: u64,
    size: Member,
    align: Member,
    is_signed: Member,
    /// The size of a `trace_event_fields`.
    entry: u64,
    /// The size of the common header.
    header: u64,
}

impl RecordLayout {
    /// The layout in a kernel that has moved by `slide` bytes.
    #[must_use]
    pub fn rebased(self, slide: i64) -> Self {
        Self {
            function: Gva(self.function.0.wrapping_add_signed(slide)),
            ..self
        }
    }

    /// Reads the description of an event of a module from the guest's memory.
    ///
    /// # Errors
    ///
    /// If the description cannot be read, or is not a list of fields.
    pub fn read_mapped(
        memory: &dyn PhysMemory,
        paging: &PagingState,
        types: &Btf,
        event: Gva,
    ) -> Result<Self, NoLayout> {
        Self::read(&Mapped { memory, paging }, types, event)
    }

    /// Reads the description of the event whose `trace_event_call` is at `event`.
    ///
    /// # Errors
    ///
    /// If the description cannot be read, or is not a list of fields.
    pub fn read(source: &dyn ImageSource, types: &Btf, event: Gva) -> Result<Self, NoLayout> {
        let offsets = Offsets::new(types).ok_or(NoLayout::Types)?;
        let image = ImageReader::new(source);
        let unreadable = NoLayout::Unreadable { event };
        let class = image.pointer(event.wrapping_add(offsets.class));
        let pointer = |offset| image.pointer(class?.wrapping_add(offset));
        let (function, list) = pointer(offsets.probe)
            .zip(pointer(offsets.fields))
            .ok_or_else(|| unreadable.clone())?;
        let mut fields = Vec::new();
        let mut offset = offsets.header;
        for number in 0..MAX_FIELDS {
            let entry = list.wrapping_add(number * offsets.entry);
            match image.number(entry.wrapping_add(offsets.ty), 8) {
                None => return Err(unreadable),
                Some(0) => {
                    let fields = fields.into();
                    return Ok(Self { function, fields });
                }
                Some(FUNCTION_TYPE) => return Err(NoLayout::MadeByFunction { event }),
                Some(_) => (),
            }
            let described = offsets
                .field(image, entry)
                .ok_or_else(|| unreadable.clone())?;
            let field = described
                .at(types, offset)
                .ok_or_else(|| NoLayout::TooFar {
                    event,
                    name: described.name.clone(),
                })?;
            let has_name = |known: &RecordField| known.name == field.name;
            if !is_name(&field.name) || fields.iter().any(has_name) {
                return Err(NoLayout::Name { event });
            }
            offset = (field.offset + field.size) as u64;
            fields.push(field);
        }
        Err(NoLayout::TooMany { event })
    }
}

/// An entry of the list of fields.
struct Described {
    ty: String,
    name: String,
    size: u64,
    align: u64,
    is_signed: bool,
}

impl Described {
    /// The field, behind `offset` bytes of the record; `None` if it is beyond the longest record.
    fn at(&self, types: &Btf, offset: u64) -> Option<RecordField> {
        let offset = offset.checked_next_multiple_of(self.align.max(1))?;
        let end = offset.checked_add(self.size)?;
        (end <= MAX_OFFSET).then_some(())?;
        let size = usize::try_from(self.size).ok()?;
        Some(RecordField {
            name: self.name.as_str().into(),
            offset: usize::try_from(offset).ok()?,
            size,
            ty: FieldType::new(types, &self.ty, size, self.is_signed),
        })
    }
}

impl Offsets {
    fn new(types: &Btf) -> Option<Self> {
        let member = |of, path| types.member(types.struct_named(of)?, path);
        let offset = |of, path| member(of, path).map(|member| member.offset_bytes);
        let of_field = |path| member("trace_event_fields", path);
        Some(Self {
            class: offset("trace_event_call", "class")?,
            probe: offset("trace_event_class", "probe")?,
            fields: offset("trace_event_class", "fields_array")?,
            ty: offset("trace_event_fields", "type")?,
            name: offset("trace_event_fields", "name")?,
            size: of_field("size")?,
            align: of_field("align")?,
            is_signed: of_field("is_signed")?,
            entry: types.size_of(types.struct_named("trace_event_fields")?)?,
            header: types.size_of(types.struct_named("trace_entry")?)?,
        })
    }

    fn field(&self, image: ImageReader<'_>, entry: Gva) -> Option<Described> {
        let text = |offset| image.text(image.pointer(entry.wrapping_add(offset))?);
        Some(Described {
            ty: text(self.ty)?,
            name: text(self.name)?,
            size: number(image, entry, &self.size)?,
            align: number(image, entry, &self.align)?,
            is_signed: number(image, entry, &self.is_signed)? != 0,
        })
    }
}

/// The number in the member of the struct at `holder`.
fn number(image: ImageReader<'_>, holder: Gva, member: &Member) -> Option<u64> {
    let at = holder.wrapping_add(member.offset_bytes);
    let bytes = image.number(at, member.size_bytes)?;
    match member.bits {
        None => Some(bytes),
        Some(BitField { offset, size }) => {
            let mask = u64::MAX.checked_shr(64_u32.checked_sub(size.into())?)?;
            Some(bytes.checked_shr(offset.into())? & mask)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::synthetic::Blob;
    use crate::tracepoints::synthetic::Image;
    use crate::tracepoints::{FieldValue, Integer};

    const EVENT: u64 = 0x100;
    const CLASS: u64 = 0x140;
    const FUNCTION: u64 = 0x180;
    const LIST: u64 = 0x200;
    const ENTRY_BYTES: u64 = 32;
    const TEXTS: u64 = 0x2000;

    /// A field: type, name, size, alignment, and whether it has a sign.
    type Entry<'e> = (&'e str, &'e str, u32, u32, bool);

    /// An event with `fields`. Of newer kernels, the sign is a bit of a word.
    fn image(fields: &[Entry<'_>], is_bit: bool) -> Image {
        let mut image = Image::zeroed(Gva(0), 0x6000);
        image.pointer(EVENT + 16, CLASS);
        image.pointer(CLASS + 8, FUNCTION);
        image.pointer(CLASS + 24, LIST);
        let mut text_at = TEXTS;
        for (number, (ty, name, size, align, is_signed)) in (0..).zip(fields) {
            let entry = LIST + number * ENTRY_BYTES;
            for (offset, text) in [(0, ty), (8, name)] {
                image.put(text_at, text.as_bytes());
                image.pointer(entry + offset, text_at);
                text_at += 32;
            }
            image.put(entry + 16, &size.to_le_bytes());
            image.put(entry + 20, &align.to_le_bytes());
            let sign = u32::from(*is_signed);
            // The bit in front is another member's.
            let word = if is_bit { sign << 1 | 1 } else { sign };
            image.put(entry + 24, &word.to_le_bytes());
        }
        image
    }

    fn types(is_bit: bool) -> Btf {
        let mut blob = Blob::new();
        let (long, int) = (blob.int("long", 8), blob.int("int", 4));
        blob.structure("trace_event_call", 64, &[("class", long, 16)]);
        let class = [("probe", long, 8), ("fields_array", long, 24)];
        blob.structure("trace_event_class", 64, &class);
        blob.structure("trace_entry", 8, &[("type", int, 0)]);
        // With the flag, the upper byte is the number of bits.
        let sign = if is_bit {
            1 << 24 | (24 * 8 + 1)
        } else {
            24 * 8
        };
        let members = [
            ("type", long, 0),
            ("name", long, 64),
            ("size", int, 128),
            ("align", int, 160),
            ("is_signed", int, sign),
        ];
        // A struct is of kind 4.
        blob.structure_in_bits("trace_event_fields", (4, is_bit), 32, &members);
        Btf::parse(blob.finish()).expect("types")
    }

    const FIELDS: [Entry<'static>; 4] = [
        ("char[3]", "comm", 3, 1, true),
        ("pid_t", "pid", 4, 4, true),
        ("u8", "state", 1, 1, false),
        ("u64", "count", 8, 8, false),
    ];

    #[test]
    fn fields_are_aligned_behind_the_common_ones() {
        for is_bit in [false, true] {
            let image = image(&FIELDS, is_bit);
            let layout = RecordLayout::read(&image, &types(is_bit), Gva(EVENT)).expect("fields");
            assert_eq!(layout.function, Gva(FUNCTION));
            let mut record = vec![0xee; 8];
            record.extend(b"sh\0\xee");
            record.extend([0xff; 5]);
            record.extend([0xee; 7]);
            record.extend([7, 0, 0, 0, 0, 0, 0, 0]);
            let values = layout.values(&record);
            let values: Vec<_> = values
                .iter()
                .map(|(name, value)| (&**name, value.clone()))
                .collect();
            let expected = [
                ("comm", FieldValue::Text("sh".to_owned())),
                ("pid", FieldValue::Integer(Integer::Signed(-1))),
                ("state", FieldValue::Integer(Integer::Unsigned(0xff))),
                ("count", FieldValue::Integer(Integer::Unsigned(7))),
            ];
            assert_eq!(values, expected, "{is_bit}");
        }
    }

    #[test]
    fn description_that_is_no_list_is_an_error() {
        let types = types(false);
        let read = |image: &Image| RecordLayout::read(image, &types, Gva(EVENT));
        let event = Gva(EVENT);
        let mut made = image(&FIELDS, false);
        made.pointer(LIST + ENTRY_BYTES, u64::MAX);
        assert_eq!(read(&made), Err(NoLayout::MadeByFunction { event }));
        let names: Vec<String> = (0..129).map(|number| format!("f{number}")).collect();
        let many: Vec<Entry<'_>> = names
            .iter()
            .map(|name| ("u8", &**name, 1, 1, false))
            .collect();
        let endless = image(&many, false);
        assert_eq!(read(&endless), Err(NoLayout::TooMany { event }));
        for names in [["pid", "pid"], ["pid", "a b"]] {
            let named = names.map(|name| ("u8", name, 1, 1, false));
            let refused = read(&image(&named, false));
            assert_eq!(refused, Err(NoLayout::Name { event }), "{names:?}");
        }
        let far = image(&[("u8[0]", "far", u32::MAX, 1, false)], false);
        let name = "far".to_owned();
        assert_eq!(read(&far), Err(NoLayout::TooFar { event, name }));
        let mut lost = image(&FIELDS, false);
        lost.pointer(LIST + ENTRY_BYTES, 0x1_0000);
        assert_eq!(read(&lost), Err(NoLayout::Unreadable { event }));
        let none = Btf::parse(Blob::new().finish()).expect("types");
        let untyped = RecordLayout::read(&lost, &none, Gva(EVENT));
        assert_eq!(untyped, Err(NoLayout::Types));
    }
}
