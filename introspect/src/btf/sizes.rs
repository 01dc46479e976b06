//! The sizes of values of a type.

use super::{Btf, Type, TypeId, format};

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
                return self.scalar_size(ty)?.checked_mul(count);
            };
            count = count.checked_mul(u64::from(len))?;
            ty = self.stripped(element)?;
        }
        None
    }

    /// The number of elements of an array; `None` if `ty` is no array. A flexible array has 0.
    #[must_use]
    pub fn array_len(&self, ty: TypeId) -> Option<u32> {
        match self.get(self.stripped(ty)?)? {
            Type::Array { len, .. } => Some(len),
            _ => None,
        }
    }

    fn scalar_size(&self, ty: TypeId) -> Option<u64> {
        match self.get(ty)? {
            Type::Pointer(_) => Some(POINTER_BYTES),
            Type::Int(int) => Some(int.size_bytes),
            Type::Float(bytes) => Some(bytes),
            Type::Struct(_) | Type::Union(_) | Type::Enum => {
                Some(u64::from(self.record(ty)?.size_or_type))
            }
            Type::Other => {
                let record = self.record(ty)?;
                (record.kind == format::DATA_SECTION).then_some(u64::from(record.size_or_type))
            }
            _ => None,
        }
    }
}
