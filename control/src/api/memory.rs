//! Guest memory.

use probes::Hex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How bytes are written in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Two digits a byte.
    #[default]
    Hex,
    /// RFC 4648.
    Base64,
}

/// A piece of guest memory, without plants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Memory {
    /// Where in the kernel's address space, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gva: Option<Hex>,
    /// Where in guest-physical memory, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gpa: Option<Hex>,
    /// Number of bytes.
    pub len: u64,
    /// How they are written.
    pub encoding: Encoding,
    /// They.
    pub bytes: String,
}
