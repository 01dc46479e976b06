//! A value as a tree.

use address::Gva;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A truth value.
    Bool(bool),
    /// A number with a sign.
    Signed(i64),
    /// A number without a sign.
    Unsigned(u64),
    /// A number of an enum.
    Enum {
        /// The number, with or without a sign.
        number: Box<Value>,
        /// The enumerator, or several with `|` between them whose bits are those of the number; bits without an enumerator come last, as a
        /// number.
        name: Option<String>,
    },
    /// A pointer.
    Pointer(Pointee),
    /// An array of characters up to the first zero.
    String {
        /// The characters.
        text: String,
        /// Whether a limit or missing memory comes before the end.
        cut: bool,
    },
    /// An array.
    Array {
        /// The first elements.
        elements: Vec<Value>,
        /// The number of elements left out at the end.
        omitted: u64,
    },
    /// A struct or a union, with the members of nameless ones among its own.
    Struct {
        /// The members.
        fields: Vec<Field>,
        /// The number of members left out; a nameless struct or union counts as one.
        omitted: u64,
    },
    /// Bytes of a type that has no other form, like a floating-point number: the lowest byte first.
    Bytes(Vec<u8>),
    /// The memory is not there; the first missing address.
    Fault(Gva),
    /// Left out: a limit has been reached.
    Omitted,
}

impl Value {
    /// The bits of a number, a truth value or a pointer, with the sign in the upper ones.
    pub(crate) fn word(&self) -> Option<u64> {
        match self {
            Self::Bool(value) => Some((*value).into()),
            Self::Signed(value) => Some(value.cast_unsigned()),
            Self::Unsigned(value) => Some(*value),
            Self::Enum { number, .. } => number.word(),
            Self::Pointer(target) => Some(target.address.0),
            _ => None,
        }
    }
}

/// A member of a struct or union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name.
    pub name: String,
    /// The type in C.
    pub declared: String,
    /// The value.
    pub value: Value,
}

/// The target of a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointee {
    /// The address.
    pub address: Gva,
    /// The kernel's symbol there, as `name+0xoffset`.
    pub symbol: Option<String>,
}
