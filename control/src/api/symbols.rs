//! Symbols of the guest's kernel.

use events::Hex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A symbol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Symbol {
    /// Running address; the linked address until the kernel has reported its running address.
    pub address: Hex,
    /// Type of the symbol: the letter printed by nm(1).
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: char,
    /// Name of the symbol.
    pub name: String,
    /// Bytes to the next symbol.
    pub size: u64,
}

/// Symbols in the order of their addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Symbols {
    /// The matching symbols, up to the limit.
    pub symbols: Vec<Symbol>,
    /// Whether more symbols match than the limit allows.
    pub more: bool,
}
