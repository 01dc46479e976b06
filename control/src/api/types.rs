//! Types of the guest's kernel, and values in memory.

use events::Hex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The value of an expression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Printed {
    /// Type in C.
    #[serde(rename = "type")]
    pub declared: String,
    /// Address of the value; absent for a number and for the result of `&` and casts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<Hex>,
    /// The value as a C initializer, with a line for each member.
    pub text: String,
    /// The value: a struct is an object with a key for each member, an array is a list, an array of `char` is text, and a number beyond 2^53
    /// is text. An enum is `{"number", "name"}`, a pointer is `{"pointer"}`, with `symbol` if it leads to the kernel's image, memory that is
    /// not there is `{"fault"}`, text that is not whole `{"cut"}`, and a part beyond the limits is `{"omitted"}`, for members behind the key
    /// `…`.
    pub value: serde_json::Value,
}

/// The declaration of a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeclaredType {
    /// Declaration in C. A comment has the offset and the size of each member.
    pub text: String,
    /// Size of a value in bytes; absent for functions, and for types with no more than a name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<u64>,
    /// Members of a struct or union. Members of nameless structs and unions are among them.
    pub members: Vec<TypeMember>,
}

/// A member of a struct or union.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TypeMember {
    /// Name; with dots for a member of a nameless type's member.
    pub name: String,
    /// Type in C.
    #[serde(rename = "type")]
    pub declared: String,
    /// Offset from the beginning of the type in bytes.
    pub offset: u64,
    /// Size in bytes; for a bit field, of the bytes with its bits.
    pub size: u64,
    /// First bit of a bit field, counted from the lowest bit of the first byte.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bit_offset: Option<u8>,
    /// Number of bits of a bit field.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bits: Option<u8>,
}

impl From<inspect::expression::Printed> for Printed {
    fn from(printed: inspect::expression::Printed) -> Self {
        Self {
            declared: printed.declared,
            address: printed.address.map(Hex::from),
            text: printed.text,
            value: printed.value,
        }
    }
}

impl From<inspect::types::Declaration> for DeclaredType {
    fn from(declaration: inspect::types::Declaration) -> Self {
        let members = declaration.members.into_iter().map(|member| TypeMember {
            name: member.name,
            declared: member.declared,
            offset: member.offset,
            size: member.size,
            bit_offset: member.bits.map(|(offset, _)| offset),
            bits: member.bits.map(|(_, bits)| bits),
        });
        Self {
            text: declaration.text,
            size: declaration.size,
            members: members.collect(),
        }
    }
}
