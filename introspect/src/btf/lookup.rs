//! Look-up of types by name and by number.

use std::{fmt, sync::Arc};

use crate::symbols::nearest_names;

use super::{
    BtfError, StructId, Type, TypeId, format, index::NameIndex, record::Record, records::Records,
};

/// `const volatile foo_t` takes three; a chain longer than the limit is a cycle.
const MAX_QUALIFIERS: usize = 32;

/// The most bytes of the names of a module's types. The guest waits while they are sorted; the largest modules have 2 MiB of types.
const MAX_MODULE_NAMES: usize = 8 << 20;

/// The types of a kernel, or of a module on top of the kernel's. Read-only; cheap to clone.
#[derive(Clone)]
pub struct Btf {
    pub(super) records: Arc<Records>,
    /// The names of the blob.
    names: Arc<NameIndex>,
    /// The names of the kernel's types, for a module.
    base_names: Option<Arc<NameIndex>>,
}

impl fmt::Debug for Btf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Btf")
            .field("bytes", &self.records.blob.len())
            .field("types", &self.records.len())
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
        Ok(Self::new(Records::find(blob.into(), None)?, None))
    }

    /// Reads the types of a module: `blob` continues the kernel's types. A look-up by name finds the module's types first.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse), if not every record of the kernel is known, or if the names are longer than those of any module.
    pub fn parse_module(&self, blob: impl Into<Arc<[u8]>>) -> Result<Self, BtfError> {
        let records = Records::find(blob.into(), Some(Arc::clone(&self.records)))?;
        if !records.names_fit(MAX_MODULE_NAMES) {
            return Err(BtfError::Names {
                most: MAX_MODULE_NAMES,
            });
        }
        Ok(Self::new(records, Some(Arc::clone(&self.names))))
    }

    fn new(records: Records, base_names: Option<Arc<NameIndex>>) -> Self {
        let names = NameIndex::build(records.named_types());
        Self {
            records: Arc::new(records),
            names: Arc::new(names),
            base_names,
        }
    }

    /// The number of types, without `void`; for a module, those of the kernel included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are no type records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

    /// The type of the global variable called `name`. The compiler's BTF has the per-CPU variables; later kernels may have others.
    #[must_use]
    pub fn variable_named(&self, name: &str) -> Option<TypeId> {
        self.find(name, &[format::VARIABLE])
    }

    /// The number of structs, unions, enums and typedefs called `name`. Different files may have different types of one name.
    #[must_use]
    pub fn are_named(&self, name: &str) -> usize {
        const KINDS: [u8; 7] = [
            format::STRUCT,
            format::UNION,
            format::ENUM,
            format::ENUM64,
            format::TYPEDEF,
            format::INT,
            format::FLOAT,
        ];
        self.find_all(name, &KINDS).count()
    }

    /// The function called `name`, the first of several.
    #[must_use]
    pub fn function_named(&self, name: &str) -> Option<TypeId> {
        self.find(name, &[format::FUNCTION])
    }

    /// At most `n` names similar to a mistyped `name` of a type, the likeliest first.
    #[must_use]
    pub fn nearest_types(&self, name: &str, n: usize) -> Vec<String> {
        let kinds = [
            format::INT,
            format::STRUCT,
            format::UNION,
            format::ENUM,
            format::ENUM64,
            format::TYPEDEF,
        ];
        let named = self.records.named_types().filter(|(ty, _)| {
            let record = self.records.record(*ty);
            record.is_some_and(|record| kinds.contains(&record.kind))
        });
        nearest_names(name, named.map(|(_, name)| name), n)
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

    /// The types called `name` of a kind in `kinds`: the module's, then the kernel's, each in the order of their numbers.
    pub(super) fn find_all(&self, name: &str, kinds: &[u8]) -> impl Iterator<Item = TypeId> {
        let of_base = self.base_names.iter();
        let candidates = self
            .names
            .candidates(name)
            .chain(of_base.flat_map(|names| names.candidates(name)));
        candidates.filter(move |&ty| {
            let of_kind = |record: Record<'_>| kinds.contains(&record.kind);
            self.records.record(ty).is_some_and(of_kind) && self.name_of(ty) == Some(name)
        })
    }
}
