//! Look-up of types in a blob, by name and by number.

use std::{fmt, sync::Arc};

use super::{
    BtfError, Int, StructId, Type, TypeId,
    format::{self, Header, RECORD_BYTES, Record, u32_at},
    index::NameIndex,
};

/// The largest kernel's take 6 MB.
const MAX_BLOB_BYTES: usize = 64 << 20;
/// The kernel's own limit is 2^20.
const MAX_TYPES: usize = 1 << 21;
/// The kernel's own limit, KSYM_NAME_LEN, is 512.
const MAX_NAME_BYTES: usize = 512;
/// `const volatile foo_t` takes three; a chain longer than the limit is a cycle.
const MAX_QUALIFIERS: usize = 32;

/// The types of a kernel. Read-only; cheap to clone.
#[derive(Clone)]
pub struct Btf {
    blob: Arc<[u8]>,
    header: Arc<Header>,
    /// The offsets of the records of type 1, 2, … in the blob.
    records: Arc<[u32]>,
    names: Arc<NameIndex>,
    complete: bool,
}

impl fmt::Debug for Btf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Btf")
            .field("bytes", &self.blob.len())
            .field("types", &self.records.len())
            .field("complete", &self.complete)
            .finish_non_exhaustive()
    }
}

impl Btf {
    /// Reads the header of `blob`, finds the records and sorts their names. Bytes behind the
    /// sections do not matter.
    ///
    /// # Errors
    ///
    /// If the blob is too large, is not BTF, or has a header pointing out of the blob. Malformed
    /// records are no error.
    pub fn parse(blob: impl Into<Arc<[u8]>>) -> Result<Self, BtfError> {
        let blob = blob.into();
        if blob.len() > MAX_BLOB_BYTES {
            return Err(BtfError::TooLarge {
                bytes: blob.len() as u64,
            });
        }
        let header = Header::parse(&blob)?;
        let (records, complete) = find_records(&blob, &header);
        let mut btf = Self {
            blob,
            header: Arc::new(header),
            records: records.into(),
            names: Arc::default(),
            complete,
        };
        btf.names = Arc::new(NameIndex::build(btf.named_types()));
        Ok(btf)
    }

    /// The number of types, without `void`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the blob has no type records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether the parser has read every record. After a record of an unknown kind, without a
    /// length in the blob, the parser cannot find the next record.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The struct called `name`.
    #[must_use]
    pub fn struct_named(&self, name: &str) -> Option<StructId> {
        self.find(name, &[format::STRUCT]).map(StructId)
    }

    /// The union called `name`.
    #[must_use]
    pub fn union_named(&self, name: &str) -> Option<StructId> {
        self.find(name, &[format::UNION]).map(StructId)
    }

    /// The typedef, integer or floating-point type called `name`.
    #[must_use]
    pub fn type_named(&self, name: &str) -> Option<TypeId> {
        self.find(name, &[format::TYPEDEF, format::INT, format::FLOAT])
    }

    /// The name of a type, without `struct`; `None` for a nameless type, like a pointer.
    #[must_use]
    pub fn name_of(&self, ty: TypeId) -> Option<&str> {
        self.string(self.record(ty)?.name)
    }

    /// The kind of the type `ty`; `None` if no type has the number.
    #[must_use]
    pub fn get(&self, ty: TypeId) -> Option<Type> {
        if ty == TypeId::VOID {
            return Some(Type::Void);
        }
        let record = self.record(ty)?;
        let target = TypeId(record.size_or_type);
        Some(match record.kind {
            format::INT => Type::Int(self.int(&record)?),
            format::FLOAT => Type::Float(u64::from(record.size_or_type)),
            format::POINTER => Type::Pointer(target),
            format::ARRAY => Type::Array {
                element: TypeId(self.word(record.body)?),
                len: self.word(record.body + 8)?,
            },
            format::STRUCT => Type::Struct(StructId(ty)),
            format::UNION => Type::Union(StructId(ty)),
            format::ENUM | format::ENUM64 => Type::Enum,
            format::FORWARD => Type::Forward,
            format::TYPEDEF => Type::Typedef(target),
            format::CONST | format::VOLATILE | format::RESTRICT | format::TYPE_TAG => {
                Type::Qualified(target)
            }
            format::FUNCTION => Type::Function(target),
            format::PROTOTYPE => Type::Prototype,
            format::VARIABLE => Type::Variable(target),
            _ => Type::Other,
        })
    }

    /// `ty` without typedefs, qualifiers and tags.
    #[must_use]
    pub fn stripped(&self, ty: TypeId) -> Option<TypeId> {
        let mut ty = ty;
        for _ in 0..MAX_QUALIFIERS {
            match self.get(ty)? {
                Type::Typedef(target) | Type::Qualified(target) | Type::Variable(target) => {
                    ty = target;
                }
                _ => return Some(ty),
            }
        }
        None
    }

    /// The first type called `name` of a kind in `kinds`.
    pub(super) fn find(&self, name: &str, kinds: &[u8]) -> Option<TypeId> {
        self.names.candidates(name).find(|&ty| {
            let of_kind = |record: Record| kinds.contains(&record.kind);
            self.record(ty).is_some_and(of_kind) && self.name_of(ty) == Some(name)
        })
    }

    pub(super) fn record(&self, ty: TypeId) -> Option<Record> {
        let index = usize::try_from(ty.0.checked_sub(1)?).ok()?;
        Record::read(&self.blob, *self.records.get(index)? as usize)
    }

    pub(super) fn word(&self, at: usize) -> Option<u32> {
        u32_at(&self.blob, at)
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

    fn int(&self, record: &Record) -> Option<Int> {
        let [bits, _, _, flags] = self.word(record.body)?.to_le_bytes();
        Some(Int {
            size_bytes: u64::from(record.size_or_type),
            bits,
            signed: flags & 1 != 0,
            boolean: flags & 4 != 0,
        })
    }

    fn named_types(&self) -> impl Iterator<Item = (TypeId, &str)> {
        let numbers = (1_u32..).take(self.records.len()).map(TypeId);
        numbers.filter_map(|ty| Some((ty, self.name_of(ty)?)))
    }
}

/// The offset of each record, and whether the records fill the section to the end.
fn find_records(blob: &[u8], header: &Header) -> (Vec<u32>, bool) {
    let end = header.types.end;
    let mut at = header.types.start;
    let mut records = Vec::new();
    while at + RECORD_BYTES <= end && records.len() < MAX_TYPES {
        let Some(record) = Record::read(blob, at) else {
            break;
        };
        let Some(next) = header
            .body_len(blob, &record)
            .and_then(|len| record.body.checked_add(len))
            .filter(|&next| next <= end)
        else {
            break;
        };
        let Ok(start) = u32::try_from(at) else {
            break;
        };
        records.push(start);
        at = next;
    }
    (records, at == end)
}
