//! Look-up of types by name and by number.

use std::{fmt, sync::Arc};

use super::{
    BtfError, StructId, Type, TypeId, format, index::NameIndex, record::Record, records::Records,
};

/// `const volatile foo_t` takes three; a chain longer than the limit is a cycle.
const MAX_QUALIFIERS: usize = 32;

/// The types of a kernel. Read-only; cheap to clone.
#[derive(Clone)]
pub struct Btf {
    pub(super) records: Arc<Records>,
    names: Arc<NameIndex>,
}

impl fmt::Debug for Btf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Btf")
            .field("bytes", &self.records.blob.len())
            .field("types", &self.records.offsets.len())
            .field("complete", &self.records.complete)
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
        let records = Records::find(blob.into())?;
        let names = NameIndex::build(records.named_types());
        Ok(Self {
            records: Arc::new(records),
            names: Arc::new(names),
        })
    }

    /// The number of types, without `void`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.offsets.len()
    }

    /// Whether the blob has no type records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.offsets.is_empty()
    }

    /// Whether the parser has read every record. After a record of an unknown kind, without a
    /// length in the blob, the parser cannot find the next record.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.records.complete
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
        self.records.string(self.records.record(ty)?.name)
    }

    /// The kind of the type `ty`; `None` if no type has the number.
    #[must_use]
    pub fn get(&self, ty: TypeId) -> Option<Type> {
        if ty == TypeId::VOID {
            return Some(Type::Void);
        }
        let record = self.records.record(ty)?;
        let target = TypeId(record.size_or_type);
        Some(match record.kind {
            format::INT => Type::Int(record.int()?),
            format::FLOAT => Type::Float(u64::from(record.size_or_type)),
            format::POINTER => Type::Pointer(target),
            format::ARRAY => {
                let (element, len) = record.array()?;
                Type::Array { element, len }
            }
            format::STRUCT => Type::Struct(StructId(ty)),
            format::UNION => Type::Union(StructId(ty)),
            format::ENUM | format::ENUM64 => Type::Enum,
            format::FORWARD => Type::Forward,
            format::TYPEDEF => Type::Typedef(target),
            format::CONST => Type::Const(target),
            format::VOLATILE => Type::Volatile(target),
            format::RESTRICT | format::TYPE_TAG => Type::Tagged(target),
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
                Type::Typedef(target)
                | Type::Const(target)
                | Type::Volatile(target)
                | Type::Tagged(target)
                | Type::Variable(target) => ty = target,
                _ => return Some(ty),
            }
        }
        None
    }

    /// The first type called `name` of a kind in `kinds`.
    pub(super) fn find(&self, name: &str, kinds: &[u8]) -> Option<TypeId> {
        self.find_all(name, kinds).next()
    }

    /// The types called `name` of a kind in `kinds`, in the order of their numbers.
    pub(super) fn find_all(&self, name: &str, kinds: &[u8]) -> impl Iterator<Item = TypeId> {
        self.names.candidates(name).filter(move |&ty| {
            let of_kind = |record: Record<'_>| kinds.contains(&record.kind);
            self.records.record(ty).is_some_and(of_kind) && self.name_of(ty) == Some(name)
        })
    }
}
