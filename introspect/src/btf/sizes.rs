//! The sizes of values of a type.

use super::{Btf, Type, TypeId, format, record::Record};

const POINTER_BYTES: u64 = 8;
/// Arrays of arrays; C programmers stop at three.
const MAX_DIMENSIONS: usize = 16;

impl Btf {
    /// The size of a value of type `ty` in bytes; `None` for functions, `void` and types with only
    /// a declaration.
    #[must_use]
    pub fn size_of(&self, ty: impl Into<TypeId>) -> Option<u64> {
        let mut ty = self.stripped(ty.into())?;
        let mut count: u64 = 1;
        for _ in 0..MAX_DIMENSIONS {
            let Type::Array { element, len } = self.get(ty)? else {
                return scalar_size(&self.records.record(ty)?)?.checked_mul(count);
            };
            count = count.checked_mul(u64::from(len))?;
            ty = self.stripped(element)?;
        }
        None
    }
}

/// The size of a value of a type that is no array, by the type's record.
fn scalar_size(record: &Record<'_>) -> Option<u64> {
    match record.kind {
        format::POINTER => Some(POINTER_BYTES),
        format::INT
        | format::FLOAT
        | format::STRUCT
        | format::UNION
        | format::ENUM
        | format::ENUM64
        | format::DATA_SECTION => Some(u64::from(record.size_or_type)),
        _ => None,
    }
}
