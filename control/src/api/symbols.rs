//! Symbols of the guest's kernel.

use probes::Hex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One symbol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Symbol {
    /// Where it is in the running guest; where it was linked, until the kernel has said where it runs.
    pub address: Hex,
    /// The letter that nm(1) prints.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: char,
    /// Its name.
    pub name: String,
    /// Bytes to the next symbol.
    pub size: u64,
}

/// Symbols in the order of their addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Symbols {
    /// These.
    pub symbols: Vec<Symbol>,
    /// Whether there are more than the limit.
    pub more: bool,
}
