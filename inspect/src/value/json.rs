//! Values as JSON.

use serde_json::{Map, Value as Json, json};

use super::tree::Value;

/// The largest number that every reader of JSON keeps.
const MAX_EXACT: u64 = 1 << 53;

impl Value {
    /// The value in JSON: a struct is an object with a key for each member; an array, a list; a string, text, and `{"cut"}` if not whole; a
    /// number beyond 2^53 and an address, text like `"0x…"`, with the bits of a negative one. An enum is `{"number", "name"}`, a pointer to
    /// a symbol `{"pointer", "symbol"}`, missing memory `{"fault"}`, and what a limit leaves out `{"omitted"}`, also as the last element of a
    /// list, and behind the key `…` in an object.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match self {
            Self::Bool(value) => json!(value),
            Self::Signed(value) if value.unsigned_abs() > MAX_EXACT => {
                json!(format!("{value:#x}"))
            }
            Self::Signed(value) => json!(value),
            Self::Unsigned(value) if *value > MAX_EXACT => json!(format!("{value:#x}")),
            Self::Unsigned(value) => json!(value),
            Self::Enum { number, name } => {
                json!({"number": number.to_json(), "name": name})
            }
            Self::Pointer(target) => {
                let address = format!("{:#x}", target.address.0);
                match &target.symbol {
                    Some(symbol) => json!({"pointer": address, "symbol": symbol}),
                    None => json!({"pointer": address}),
                }
            }
            Self::String { text, cut: false } => json!(text),
            Self::String { text, cut: true } => json!({"cut": text}),
            Self::Array { elements, omitted } => {
                let mut elements: Vec<Json> = elements.iter().map(Self::to_json).collect();
                if *omitted > 0 {
                    elements.push(json!({"omitted": omitted}));
                }
                Json::Array(elements)
            }
            Self::Struct { fields, omitted } => {
                let members = fields.iter();
                let members = members.map(|field| (field.name.clone(), field.value.to_json()));
                // No member has the name.
                let rest = (*omitted > 0).then(|| ("…".to_owned(), json!({"omitted": omitted})));
                Json::Object(members.chain(rest).collect::<Map<_, _>>())
            }
            Self::Bytes(bytes) => {
                let hex = bytes.iter().rev().map(|byte| format!("{byte:02x}"));
                json!(format!("0x{}", hex.collect::<String>()))
            }
            Self::Fault(at) => json!({"fault": format!("{:#x}", at.0)}),
            Self::Omitted => json!({"omitted": true}),
        }
    }
}
