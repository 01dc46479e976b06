//! The names of the numbers of a signature's enums.
//!
//! They are copies: a signature that held on to the types would keep the blob of a module that is gone.

use std::borrow::Cow;

use super::kind::Kind;
use crate::btf::{Btf, Enum, TypeId, are_flags, combined};

/// The most enumerators of a signature: each probe has its own copies.
pub(super) const MAX_ENUMERATORS: usize = 128;
/// Enumerators with longer names have none.
const MAX_NAME_BYTES: usize = 96;
/// The most bytes of the names together.
const MAX_BYTES: usize = 4096;

/// A few enums, in the order of the parameters.
#[derive(Clone, Debug, Default)]
pub(super) struct EnumNames(Box<[NamedEnum]>);

/// The names of an enum.
#[derive(Clone, Debug)]
struct NamedEnum {
    ty: TypeId,
    enumerators: Box<[(Box<str>, i64)]>,
    /// Whether numbers without an enumerator are made of flags.
    is_flags: bool,
}

impl EnumNames {
    /// The enumerators of the enums among `kinds`, as many as there is room for.
    pub(super) fn new(types: &Btf, kinds: impl Iterator<Item = Kind>) -> Self {
        let mut enums: Vec<NamedEnum> = Vec::new();
        let (mut enumerators, mut bytes) = (MAX_ENUMERATORS, MAX_BYTES);
        for kind in kinds {
            let Kind::Enum { ty, .. } = kind else {
                continue;
            };
            if enums.iter().any(|known| known.ty == ty) {
                continue;
            }
            if let Some(of_enum) = types.as_enum(ty) {
                let named = NamedEnum::new(ty, of_enum, enumerators, &mut bytes);
                enumerators -= named.enumerators.len();
                enums.push(named);
            }
        }
        Self(enums.into())
    }

    /// The first enumerator of `ty` with the number `value`, or the flags in it.
    pub(super) fn name(&self, ty: TypeId, value: i64) -> Option<Cow<'_, str>> {
        let found = self.0.iter().find(|known| known.ty == ty)?;
        let mut enumerators = found.enumerators.iter();
        if let Some((name, _)) = enumerators.find(|(_, number)| *number == value) {
            return Some(Cow::Borrowed(name));
        }
        let flags = found.enumerators.iter();
        let flags = flags.map(|(name, number)| (&**name, *number));
        let combined = found.is_flags.then(|| combined(flags, value));
        combined.flatten().map(Cow::Owned)
    }
}

impl NamedEnum {
    /// At most `most` enumerators of `of_enum`, whose names take their bytes from `bytes`.
    fn new(ty: TypeId, of_enum: Enum<'_>, most: usize, bytes: &mut usize) -> Self {
        let mut enumerators = Vec::new();
        // A flag without a name would be shown as a bit without a name.
        let mut is_whole = true;
        for (number, (name, value)) in of_enum.values().enumerate() {
            let left = bytes.checked_sub(name.len());
            if number == most || left.is_none() {
                is_whole = false;
                break;
            }
            if name.len() > MAX_NAME_BYTES {
                is_whole = false;
                continue;
            }
            *bytes = left.unwrap_or(0);
            enumerators.push((Box::from(name), value));
        }
        Self {
            ty,
            is_flags: is_whole && are_flags(enumerators.iter().map(|(_, value)| *value)),
            enumerators: enumerators.into(),
        }
    }
}
