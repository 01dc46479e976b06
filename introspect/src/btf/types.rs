//! What is said about types.

/// A type's number in its blob; 0 is `void`. Of use only with the [`Btf`](super::Btf) that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub(super) u32);

impl TypeId {
    /// `void`, which has no record.
    pub const VOID: Self = Self(0);

    /// The number, as tools print it.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The number of a struct or union that is defined in the blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StructId(pub(super) TypeId);

impl From<StructId> for TypeId {
    fn from(id: StructId) -> Self {
        id.0
    }
}

/// An integer, a character or a truth value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int {
    /// How many bytes it takes.
    pub size_bytes: u64,
    /// How many bits of them count.
    pub bits: u8,
    /// Whether it is signed.
    pub signed: bool,
    /// Whether it is a `bool`.
    pub boolean: bool,
}

/// One type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `void`.
    Void,
    /// An integer.
    Int(Int),
    /// A floating-point number of so many bytes.
    Float(u64),
    /// A pointer to a type.
    Pointer(TypeId),
    /// An array.
    Array {
        /// What it holds.
        element: TypeId,
        /// How many; 0 for a flexible one.
        len: u32,
    },
    /// A struct.
    Struct(StructId),
    /// A union.
    Union(StructId),
    /// An enum.
    Enum,
    /// A struct or union that is only declared.
    Forward,
    /// Another name for a type.
    Typedef(TypeId),
    /// `const`, `volatile`, `restrict` or a tag on a type.
    Qualified(TypeId),
    /// A function, by its prototype.
    Function(TypeId),
    /// What a function takes and returns.
    Prototype,
    /// A global variable's type.
    Variable(TypeId),
    /// Something that is no type of a value.
    Other,
}

/// The bits of a bit field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitField {
    /// From the lowest bit of the first byte, 0..8.
    pub offset: u8,
    /// How many.
    pub size: u8,
}

/// A member of a struct or union, found by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// From the beginning of the struct that the path starts in.
    pub offset_bytes: u64,
    /// How many bytes to read: of a bit field, those that its bits lie in. 0 where the type has no
    /// size, as a flexible array.
    pub size_bytes: u64,
    /// Which bits of those bytes, when it is a bit field.
    pub bits: Option<BitField>,
    /// Its type, as declared.
    pub ty: TypeId,
}

/// One parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name; `None` when the prototype leaves it out.
    pub name: Option<String>,
    /// Its type, as declared.
    pub ty: TypeId,
}

/// What a function takes and returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuncProto {
    /// In order. Without the `...` that may come last.
    pub params: Vec<Param>,
    /// Whether a `...` does.
    pub variadic: bool,
    /// What it returns.
    pub returns: TypeId,
}
