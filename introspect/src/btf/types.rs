//! The descriptions of types returned by [`Btf`](super::Btf).

/// A type's number in the blob; 0 is `void`. Valid only with the [`Btf`](super::Btf) that returned
/// the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub(super) u32);

impl TypeId {
    /// `void`, which has no record.
    pub const VOID: Self = Self(0);

    /// The number as printed by BTF tools.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The number of a struct or union defined in the blob.
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
    /// The size in bytes.
    pub size_bytes: u64,
    /// The number of significant bits.
    pub bits: u8,
    /// Whether the integer is signed.
    pub signed: bool,
    /// Whether the integer is a `bool`.
    pub boolean: bool,
}

/// The kind of a type, with the types it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `void`.
    Void,
    /// An integer.
    Int(Int),
    /// A floating-point number, with the size in bytes.
    Float(u64),
    /// A pointer to a type.
    Pointer(TypeId),
    /// An array.
    Array {
        /// The elements' type.
        element: TypeId,
        /// The number of elements; 0 for a flexible array.
        len: u32,
    },
    /// A struct.
    Struct(StructId),
    /// A union.
    Union(StructId),
    /// An enum.
    Enum,
    /// A struct or union with only a declaration.
    Forward,
    /// Another name for a type.
    Typedef(TypeId),
    /// `const`.
    Const(TypeId),
    /// `volatile`.
    Volatile(TypeId),
    /// `restrict`, or a tag on a type.
    Tagged(TypeId),
    /// A function, with the prototype's number.
    Function(TypeId),
    /// A function prototype.
    Prototype,
    /// A global variable's type.
    Variable(TypeId),
    /// A record of another kind, not the type of a value.
    Other,
}

/// The bits of a bit field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitField {
    /// From the lowest bit of the first byte, 0..8.
    pub offset: u8,
    /// The number of bits.
    pub size: u8,
}

/// A member of a struct or union, found by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The offset from the beginning of the struct in which the path starts.
    pub offset_bytes: u64,
    /// The number of bytes to read; for a bit field, the bytes holding the field's bits. 0 for a
    /// type without a size, like a flexible array.
    pub size_bytes: u64,
    /// For a bit field, the bits within these bytes.
    pub bits: Option<BitField>,
    /// The type as declared.
    pub ty: TypeId,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// The name; `None` if the prototype has no name for the parameter.
    pub name: Option<String>,
    /// The type as declared.
    pub ty: TypeId,
}

/// The parameters and the return type of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuncProto {
    /// The parameters in order, without a final `...`.
    pub params: Vec<Param>,
    /// Whether a `...` ends the parameter list.
    pub variadic: bool,
    /// The return type.
    pub returns: TypeId,
}
