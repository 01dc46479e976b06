//! Numbers and pointers of another type.

use introspect::Btf;
use introspect::btf::{Enum, Int, Type};

use super::evaluate::PointedType;

impl PointedType {
    /// `word` as a value of this type, as C converts it; `None` if the type has no numbers and no pointers, or larger ones than a word.
    pub(super) fn converted(self, types: &Btf, word: u64) -> Option<u64> {
        let is_signed = match self.kind(types)? {
            Type::Pointer(_) => return Some(word),
            Type::Int(Int { boolean: true, .. }) => return Some((word != 0).into()),
            Type::Int(int) => int.signed,
            Type::Enum => types.as_enum(self.id).is_some_and(Enum::is_signed),
            _ => return None,
        };
        let bytes = types.size_of(self.id)?;
        let bytes = u32::try_from(bytes)
            .ok()
            .filter(|bytes| (1..=8).contains(bytes));
        let unused = 64 - 8 * bytes?;
        let shifted = word << unused;
        Some(match is_signed {
            true => (shifted.cast_signed() >> unused).cast_unsigned(),
            false => shifted >> unused,
        })
    }
}
