//! Names for numbers.

use std::borrow::Cow;

use super::{Btf, TypeId, are_flags, combined, format, record::Record};

/// The most enumerators that are looked at for a name.
const MAX_ENUMERATORS: usize = 4096;

/// An enum of a [`Btf`].
#[derive(Clone, Copy)]
pub struct Enum<'b> {
    btf: &'b Btf,
    record: Record<'b>,
}

impl Btf {
    /// The enum called `name`.
    #[must_use]
    pub fn enum_named(&self, name: &str) -> Option<TypeId> {
        self.find(name, &[format::ENUM, format::ENUM64])
    }

    /// `ty` as an enum, behind typedefs and qualifiers; `None` if `ty` is another type.
    #[must_use]
    pub fn as_enum(&self, ty: TypeId) -> Option<Enum<'_>> {
        let record = self.records.record(self.stripped(ty)?)?;
        let is_enum = matches!(record.kind, format::ENUM | format::ENUM64);
        is_enum.then_some(Enum { btf: self, record })
    }
}

impl std::fmt::Debug for Enum<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

impl<'b> Enum<'b> {
    /// The enumerators in order, as names and numbers. For an unsigned 64-bit number, the `i64` has the
    /// same bits.
    pub fn values(self) -> impl Iterator<Item = (&'b str, i64)> {
        let enumerators = self.record.enumerators();
        enumerators.filter_map(move |(name, value)| Some((self.btf.records.string(name)?, value)))
    }

    /// Whether the numbers have a sign, according to the flag of the record. Before 6.0 no enum has the
    /// flag.
    #[must_use]
    pub fn is_signed(self) -> bool {
        self.record.is_signed_enum()
    }

    /// The number of the enumerator `name`.
    #[must_use]
    pub fn value(self, name: &str) -> Option<i64> {
        self.values()
            .find_map(|(found, value)| (found == name).then_some(value))
    }

    /// The first enumerator with the number `value`, among a few thousand.
    #[must_use]
    pub fn name(self, value: i64) -> Option<&'b str> {
        let mut enumerators = self.record.enumerators().take(MAX_ENUMERATORS);
        let (name, _) = enumerators.find(|(_, found)| *found == value)?;
        self.btf.records.string(name)
    }

    /// The first enumerator with the number `value`; in an enum of flags, the enumerators of a single bit each that `value` is made of, and
    /// the bits without an enumerator as a number: `READ|WRITE|0x40`.
    #[must_use]
    pub fn meaning(self, value: i64) -> Option<Cow<'b, str>> {
        if let Some(name) = self.name(value) {
            return Some(Cow::Borrowed(name));
        }
        let numbers = self.record.enumerators().map(|(_, number)| number);
        let is_flags = are_flags(numbers);
        let combined = is_flags.then(|| combined(self.values(), value));
        combined.flatten().map(Cow::Owned)
    }
}
