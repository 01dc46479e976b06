//! Names for numbers.

use super::{Btf, TypeId, format};

/// The most enumerators that are looked at for a name: a name is looked up at each hit.
const MAX_ENUMERATORS: usize = 4096;

impl Btf {
    /// The enum called `name`.
    #[must_use]
    pub fn enum_named(&self, name: &str) -> Option<TypeId> {
        self.find(name, &[format::ENUM, format::ENUM64])
    }

    /// The enumerators of `ty` in order, as names and numbers; empty if `ty` is no enum. For an
    /// unsigned 64-bit number, the `i64` has the same bits.
    pub fn enum_values(&self, ty: TypeId) -> impl Iterator<Item = (&str, i64)> {
        let record = self.stripped(ty).and_then(|ty| self.records.record(ty));
        let of_enum = record.filter(|record| matches!(record.kind, format::ENUM | format::ENUM64));
        let enumerators = of_enum.into_iter().flat_map(|record| record.enumerators());
        enumerators.filter_map(|(name, value)| Some((self.records.string(name)?, value)))
    }

    /// Whether the numbers of the enum `ty` have a sign, according to the flag of its record. Before
    /// 6.0 no enum has the flag.
    #[must_use]
    pub fn is_signed_enum(&self, ty: TypeId) -> bool {
        let record = self.stripped(ty).and_then(|ty| self.records.record(ty));
        record.is_some_and(|record| record.is_signed_enum())
    }

    /// The number of the enumerator `name` in the enum `ty`.
    #[must_use]
    pub fn enum_value(&self, ty: TypeId, name: &str) -> Option<i64> {
        self.enum_values(ty)
            .find_map(|(found, value)| (found == name).then_some(value))
    }

    /// The first enumerator with the number `value` in the enum `ty`, among a few thousand.
    #[must_use]
    pub fn enum_name(&self, ty: TypeId, value: i64) -> Option<&str> {
        let record = self.stripped(ty).and_then(|ty| self.records.record(ty))?;
        if !matches!(record.kind, format::ENUM | format::ENUM64) {
            return None;
        }
        let mut enumerators = record.enumerators().take(MAX_ENUMERATORS);
        let (name, _) = enumerators.find(|(_, found)| *found == value)?;
        self.records.string(name)
    }
}
