//! 64-bit values in JSON.

use address::Gva;
use serde::{Deserialize, Serialize};

/// A 64-bit value, in JSON the string `"0x…"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hex(pub u64);

impl From<Gva> for Hex {
    fn from(address: Gva) -> Self {
        Self(address.0)
    }
}

impl std::fmt::Display for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Serialize for Hex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.strip_prefix("0x")
            // `from_str_radix` would accept a sign.
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .map(Self)
            .ok_or_else(|| {
                serde::de::Error::custom(format!("`{text}` is not a hexadecimal number like 0x1f"))
            })
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Hex {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .pattern(Some("^0x0*[0-9a-fA-F]{1,16}$"))
            .description(Some("A 64-bit value in hexadecimal."))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Hex {}
