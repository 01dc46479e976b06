//! The names of the numbers of a signature's enums.
//!
//! They are copies: a signature that held on to the types would keep the blob of a module that is gone.

use super::kind::Kind;
use crate::btf::{Btf, Enum, TypeId};

/// The most enumerators of a signature: each probe has its own copies.
const MAX_ENUMERATORS: usize = 128;
/// Enumerators with longer names have none.
const MAX_NAME_BYTES: usize = 96;
/// The most bytes of the names together.
const MAX_BYTES: usize = 4096;

/// The enumerators of a few enums, in the order of the types.
#[derive(Clone, Debug)]
pub(super) struct EnumNames(Box<[(TypeId, i64, Box<str>)]>);

impl EnumNames {
    /// The enumerators of the enums among `kinds`, as many as there is room for.
    pub(super) fn new(types: &Btf, kinds: impl Iterator<Item = Kind>) -> Self {
        let mut names: Vec<(TypeId, i64, Box<str>)> = Vec::new();
        let mut bytes = 0;
        for kind in kinds {
            let Kind::Enum { ty, .. } = kind else {
                continue;
            };
            if names.iter().any(|(known, ..)| *known == ty) {
                continue;
            }
            let values = types.as_enum(ty).into_iter().flat_map(Enum::values);
            for (name, value) in values.take(MAX_ENUMERATORS - names.len()) {
                if name.len() > MAX_NAME_BYTES {
                    continue;
                }
                bytes += name.len();
                if bytes > MAX_BYTES {
                    return Self(names.into());
                }
                names.push((ty, value, name.into()));
            }
        }
        Self(names.into())
    }

    /// The first enumerator of `ty` with the number `value`.
    pub(super) fn name(&self, ty: TypeId, value: i64) -> Option<&str> {
        let mut names = self.0.iter();
        let (.., name) = names.find(|(of, number, _)| (*of, *number) == (ty, value))?;
        Some(name)
    }
}
