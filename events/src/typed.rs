//! Values by their types.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::hex::Hex;

/// Integers beyond are strings in JSON, whose numbers are not exact beyond 2^53.
const EXACT: u64 = 1 << 53;

/// A number of the guest: a JSON number or truth value, or the string `"0x…"` if the number is an address or not exact in JSON.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// An address, or an integer beyond 2^53, as its 64 bits.
    Hex(Hex),
}

impl Number {
    /// An integer without a sign.
    #[must_use]
    pub fn unsigned(value: u64) -> Self {
        match i64::try_from(value) {
            Ok(integer) if value <= EXACT => Self::Integer(integer),
            _ => Self::Hex(Hex(value)),
        }
    }

    /// An integer with a sign.
    #[must_use]
    pub fn signed(value: i64) -> Self {
        if value.unsigned_abs() <= EXACT {
            Self::Integer(value)
        } else {
            Self::Hex(Hex(value.cast_unsigned()))
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Hex(value) => value.fmt(f),
        }
    }
}

/// A value with its type in C.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Typed {
    /// The type as declared, for instance `const char *`.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub ty: Arc<str>,
    /// The value; an address for a pointer. Absent for what a word does not hold, and for a value that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub value: Option<Number>,
    /// The value's name in the source, for instance an enumerator.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub means: Option<String>,
    /// The name of the error, for instance `ENOENT`, that a negative value or a pointer stands for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// For a pointer to characters: the string there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub string: Option<GuestString>,
    /// For a pointer to a small struct: the members there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub members: Option<GuestMembers>,
}

impl Typed {
    /// A value of the type `ty` that cannot be read, or that a word does not hold.
    #[must_use]
    pub fn without_value(ty: Arc<str>) -> Self {
        Self {
            ty,
            value: None,
            means: None,
            error: None,
            string: None,
            members: None,
        }
    }
}

impl std::fmt::Display for Typed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self {
                string: Some(string),
                ..
            } => string.fmt(f),
            Self {
                members: Some(members),
                ..
            } => members.fmt(f),
            Self {
                means: Some(name), ..
            } => f.write_str(name),
            Self {
                error: Some(error),
                value: Some(value),
                ..
            } => write!(f, "{value} ({error})"),
            Self {
                value: Some(value), ..
            } => value.fmt(f),
            Self { value: None, .. } => f.write_str("…"),
        }
    }
}

/// A string in the guest's memory.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestString {
    /// The whole string. Bytes that are no UTF-8 are U+FFFD.
    Whole(String),
    /// The beginning of a string that is longer than the limit.
    Cut(String),
    /// No memory is mapped at this address of the string.
    Fault(Hex),
}

/// In quotes, with everything escaped that could end the quotes or control a terminal.
impl std::fmt::Display for GuestString {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(text) => write!(f, "{text:?}"),
            Self::Cut(text) => write!(f, "{text:?}…"),
            Self::Fault(at) => write!(f, "<fault {at}>"),
        }
    }
}

/// A small struct in the guest's memory.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestMembers {
    /// All members of the struct.
    #[cfg_attr(feature = "openapi", schema(no_recursion))]
    Whole(Vec<Param>),
    /// The struct at this address is not in memory, or not as a whole.
    Fault(Hex),
}

/// As in C: `{flags=0x8000, mode=0, resolve=0}`.
impl std::fmt::Display for GuestMembers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(members) => {
                let members: Vec<String> = members.iter().map(ToString::to_string).collect();
                write!(f, "{{{}}}", members.join(", "))
            }
            Self::Fault(at) => write!(f, "<fault {at}>"),
        }
    }
}

/// A named parameter of a function, or a named member of a struct.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Param {
    /// The name in the source.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Arc<str>,
    /// The value at the hit.
    #[serde(flatten)]
    pub typed: Typed,
}

impl std::fmt::Display for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.typed {
            Typed {
                value: Some(Number::Integer(value)),
                means: None,
                error: None,
                string: None,
                members: None,
                ..
            } => write!(f, "{}={}", self.name, of_name(&self.name, *value)),
            typed => write!(f, "{}={typed}", self.name),
        }
    }
}

/// An integer, by the end of its name: bits are in hexadecimal, and permissions in octal.
pub(crate) fn of_name(name: &str, value: i64) -> String {
    const BITS: [&str; 5] = ["flags", "mask", "prot", "addr", "events"];
    const PERMISSIONS: [&str; 2] = ["mode", "umask"];
    let is_called = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    if value > 0 && is_called(&PERMISSIONS) {
        return format!("0{value:o}");
    }
    if value > 9 && is_called(&BITS) {
        return format!("{value:#x}");
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(value: Number) -> Typed {
        Typed {
            value: Some(value),
            ..Typed::without_value("int".into())
        }
    }

    #[test]
    fn structs_are_written_as_in_c() {
        let member = |name: &str, value| Param {
            name: name.into(),
            typed: typed(Number::Integer(value)),
        };
        let members = vec![member("flags", 0x8000), member("mode", 0o644)];
        let mut how = Param {
            name: "how".into(),
            typed: Typed {
                members: Some(GuestMembers::Whole(members)),
                ..typed(Number::Hex(Hex(0x1000)))
            },
        };
        assert_eq!(how.to_string(), "how={flags=0x8000, mode=0644}");
        how.typed.members = Some(GuestMembers::Fault(Hex(0x1000)));
        assert_eq!(how.to_string(), "how=<fault 0x1000>");
    }

    #[test]
    fn people_read_names_and_strings_in_place_of_numbers() {
        let plain = typed(Number::Integer(-2));
        assert_eq!(plain.to_string(), "-2");
        let error = Typed {
            error: Some("ENOENT".to_owned()),
            ..plain.clone()
        };
        assert_eq!(error.to_string(), "-2 (ENOENT)");
        let named = Typed {
            means: Some("AT_FDCWD".to_owned()),
            ..plain.clone()
        };
        assert_eq!(named.to_string(), "AT_FDCWD");
        let string = |string| Param {
            name: "name".into(),
            typed: Typed {
                string: Some(string),
                ..typed(Number::Hex(Hex(0x1000)))
            },
        };
        let whole = string(GuestString::Whole("a\"\x1b\n".to_owned()));
        assert_eq!(whole.to_string(), r#"name="a\"\u{1b}\n""#);
        let cut = string(GuestString::Cut("a".to_owned()));
        assert_eq!(cut.to_string(), "name=\"a\"…");
        let fault = string(GuestString::Fault(Hex(0x1000)));
        assert_eq!(fault.to_string(), "name=<fault 0x1000>");
    }

    #[test]
    fn bits_are_hexadecimal_and_permissions_octal() {
        let param = |name: &str, value| {
            let param = Param {
                name: name.into(),
                typed: typed(Number::Integer(value)),
            };
            param.to_string()
        };
        assert_eq!(param("flags", 0x8000), "flags=0x8000");
        assert_eq!(param("clone_flags", 0), "clone_flags=0");
        assert_eq!(param("mode", 0o644), "mode=0644");
        assert_eq!(param("mode", 0), "mode=0");
        assert_eq!(param("count", 32), "count=32");
        assert_eq!(param("flags", -1), "flags=-1");
    }

    #[test]
    fn a_parameter_is_one_flat_object() {
        let param = Param {
            name: "name".into(),
            typed: Typed {
                string: Some(GuestString::Whole("x".to_owned())),
                ..typed(Number::Hex(Hex(0x1000)))
            },
        };
        let json = serde_json::to_value(&param).expect("JSON");
        let expected = serde_json::json!({
            "name": "name", "type": "int", "value": "0x1000", "string": { "whole": "x" },
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Param>(json).expect("read"), param);
    }

    #[test]
    fn integers_are_numbers_while_json_has_them_exactly() {
        assert_eq!(Number::unsigned(EXACT), Number::Integer(1 << 53));
        assert_eq!(Number::unsigned(EXACT + 1), Number::Hex(Hex(EXACT + 1)));
        assert_eq!(Number::unsigned(u64::MAX), Number::Hex(Hex(u64::MAX)));
        assert_eq!(Number::signed(-100), Number::Integer(-100));
        assert_eq!(Number::signed(i64::MIN), Number::Hex(Hex(1 << 63)));
    }
}
