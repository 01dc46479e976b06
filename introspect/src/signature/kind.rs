//! How the bits of a value are read.

use crate::btf::{Btf, Enum, Type, TypeId};

/// The most tags on a type, for instance the kernel's `__user`.
const MAX_TAGS: usize = 4;

/// What the word in a register or on the stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An integer of 1, 2, 4 or 8 bytes; the word's other bits have no meaning.
    Integer {
        /// The size.
        bytes: u8,
        /// Whether it has a sign.
        signed: bool,
    },
    /// A truth value, in the lowest byte.
    Bool,
    /// An enumerator's number.
    Enum {
        /// The enum.
        ty: TypeId,
        /// The size.
        bytes: u8,
        /// Whether it has a sign.
        signed: bool,
    },
    /// A pointer to characters that the function does not change: a string.
    String,
    /// Another pointer.
    Pointer,
    /// Anything else of up to 8 bytes, for instance a small struct: its bytes as a number.
    Word {
        /// The size.
        bytes: u8,
    },
    /// Nothing that a word holds.
    Larger,
}

impl Kind {
    /// How a value of the type `ty` is read.
    pub(super) fn of(types: &Btf, ty: TypeId) -> Self {
        let Some(ty) = types.stripped(ty) else {
            return Self::Larger;
        };
        let bytes = types.size_of(ty).and_then(|bytes| u8::try_from(bytes).ok());
        match (types.get(ty), bytes) {
            (Some(Type::Int(int)), _) if int.boolean => Self::Bool,
            (Some(Type::Int(int)), Some(bytes @ (1 | 2 | 4 | 8))) => Self::Integer {
                bytes,
                signed: int.signed,
            },
            (Some(Type::Enum), Some(bytes @ (1 | 2 | 4 | 8))) => Self::Enum {
                ty,
                bytes,
                signed: types.as_enum(ty).is_some_and(Enum::is_signed),
            },
            (Some(Type::Pointer(target)), _) if is_constant_char(types, target) => Self::String,
            (Some(Type::Pointer(_)), _) => Self::Pointer,
            (_, Some(bytes @ 1..=8)) => Self::Word { bytes },
            _ => Self::Larger,
        }
    }

    /// The number in `word` as a signed integer; an unsigned one of 64 bits keeps its bits.
    #[must_use]
    pub fn number(self, word: u64) -> i64 {
        let (bytes, signed) = match self {
            Self::Integer { bytes, signed } | Self::Enum { bytes, signed, .. } => (bytes, signed),
            Self::Bool => (1, false),
            Self::Word { bytes } => (bytes, false),
            Self::String | Self::Pointer | Self::Larger => (8, false),
        };
        let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
        let shifted = word << unused;
        if signed {
            shifted.cast_signed() >> unused
        } else {
            (shifted >> unused).cast_signed()
        }
    }
}

/// Whether `ty` is `const char`. A pointer to `char` alone is a buffer.
fn is_constant_char(types: &Btf, ty: TypeId) -> bool {
    let mut ty = ty;
    for _ in 0..MAX_TAGS {
        match types.get(ty) {
            Some(Type::Tagged(target)) => ty = target,
            _ => break,
        }
    }
    let Some(Type::Const(inner)) = types.get(ty) else {
        return false;
    };
    let char = types.stripped(inner);
    char.is_some_and(|char| {
        matches!(types.get(char), Some(Type::Int(int)) if int.size_bytes == 1)
            && types.name_of(char) == Some("char")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_determines_the_significant_bits() {
        let word = 0xdead_beef_ffff_ff9c;
        let number = |bytes, signed| Kind::Integer { bytes, signed }.number(word);
        assert_eq!(number(4, true), -100);
        assert_eq!(number(4, false), 0xffff_ff9c);
        assert_eq!(number(1, true), -100);
        assert_eq!(number(1, false), 0x9c);
        assert_eq!(number(2, false), 0xff9c);
        assert_eq!(number(8, true), word.cast_signed());
        assert_eq!(Kind::Bool.number(0xff00), 0);
        assert_eq!(Kind::Pointer.number(word), word.cast_signed());
        assert_eq!(Kind::Word { bytes: 4 }.number(word), 0xffff_ff9c);
    }
}
