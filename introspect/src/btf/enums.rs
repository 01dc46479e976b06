//! Names for numbers.

use super::{Btf, TypeId, format, format::Record};

impl Btf {
    /// The enum called `name`.
    #[must_use]
    pub fn enum_named(&self, name: &str) -> Option<TypeId> {
        self.find(name, &[format::ENUM, format::ENUM64])
    }

    /// The enumerators of `ty` in order, as names and numbers; empty if `ty` is no enum. For an
    /// unsigned 64-bit number, the `i64` has the same bits.
    pub fn enum_values(&self, ty: TypeId) -> impl Iterator<Item = (&str, i64)> {
        let record = self.stripped(ty).and_then(|ty| self.record(ty));
        let of_enum = record.filter(|record| matches!(record.kind, format::ENUM | format::ENUM64));
        of_enum.into_iter().flat_map(move |record| {
            (0..record.count).filter_map(move |number| self.enumerator(&record, number))
        })
    }

    /// The number of the enumerator `name` in the enum `ty`.
    #[must_use]
    pub fn enum_value(&self, ty: TypeId, name: &str) -> Option<i64> {
        self.enum_values(ty)
            .find_map(|(found, value)| (found == name).then_some(value))
    }

    /// The first enumerator with the number `value` in the enum `ty`.
    #[must_use]
    pub fn enum_name(&self, ty: TypeId, value: i64) -> Option<&str> {
        self.enum_values(ty)
            .find_map(|(name, found)| (found == value).then_some(name))
    }

    /// The record's flag marks an enum with numbers below zero; before 6.0 no enum had the flag.
    fn enumerator(&self, record: &Record, number: usize) -> Option<(&str, i64)> {
        let wide = record.kind == format::ENUM64;
        let stride: usize = if wide { 12 } else { 8 };
        let at = record.body.checked_add(number.checked_mul(stride)?)?;
        let name = self.string(self.word(at)?)?;
        let low = self.word(at + 4)?;
        let value = if wide {
            let high = self.word(at + 8)?;
            (u64::from(high) << 32 | u64::from(low)).cast_signed()
        } else if record.flag {
            i64::from(low.cast_signed())
        } else {
            i64::from(low)
        };
        Some((name, value))
    }
}
