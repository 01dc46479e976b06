//! Guest memory.

use events::Hex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Encoding of bytes in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Two hexadecimal digits per byte.
    #[default]
    Hex,
    /// Base64 of RFC 4648.
    Base64,
}

/// A range of guest memory, without plants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Memory {
    /// Address in the kernel's address space, if the request has `gva`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gva: Option<Hex>,
    /// Guest-physical address, if the request has `gpa`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gpa: Option<Hex>,
    /// Number of bytes.
    pub len: u64,
    /// Encoding of `bytes`.
    pub encoding: Encoding,
    /// The encoded bytes.
    pub bytes: String,
}
