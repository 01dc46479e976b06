//! The names of the numbers of a signature's enums.
//!
//! They are copies: a signature that held on to the types would keep the blob of a module that is gone.

use super::{MAX_NAME_BYTES, Shape, kind::Kind, shortened};
use crate::btf::{Btf, TypeId};

/// The most enumerators of a signature: each probe has its own copies.
const MAX_ENUMERATORS: usize = 128;
/// The most bytes of their names.
const MAX_BYTES: usize = 4096;

/// The enumerators of a few enums, in the order of the types.
#[derive(Clone, Debug)]
pub(super) struct EnumNames(Box<[(TypeId, i64, Box<str>)]>);

impl EnumNames {
    /// The enumerators of the enums among `shapes`, as many as there is room for.
    pub(super) fn new<'s>(types: &Btf, shapes: impl Iterator<Item = &'s Shape>) -> Self {
        let mut names: Vec<(TypeId, i64, Box<str>)> = Vec::new();
        let mut bytes = 0;
        for shape in shapes {
            let Kind::Enum { ty, .. } = shape.kind else {
                continue;
            };
            if names.iter().any(|(known, ..)| *known == ty) {
                continue;
            }
            for (name, value) in types.enum_values(ty).take(MAX_ENUMERATORS - names.len()) {
                let name = shortened(name, MAX_NAME_BYTES);
                bytes += name.len();
                if bytes > MAX_BYTES {
                    return Self(names.into());
                }
                names.push((ty, value, (*name).into()));
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
