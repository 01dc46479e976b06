//! The fields of a tracepoint's record.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::hex::Hex;
use crate::typed::{Number, of_name};

/// The fields in the order of the record, in JSON an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<Field>);

/// A field of a tracepoint's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name, as in the guest's `tracing/events/GROUP/NAME/format`.
    pub name: Arc<str>,
    /// The value at the hit.
    pub value: FieldValue,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FieldValue {
    /// An integer, a truth value or an address.
    Number(Number),
    /// A text. Bytes that are no UTF-8 are U+FFFD.
    Text(String),
    /// The elements of an array.
    List(Vec<Number>),
    /// The field is outside of the record, or the record has too much text or too many elements.
    Unknown,
}

impl Fields {
    /// The value of the field `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        let field = self.0.iter().find(|field| &*field.name == name);
        field.map(|field| &field.value)
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for Field { name, value } in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of fields")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields, M::Error> {
                let mut fields = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, FieldValue>()? {
                    let name = name.into();
                    fields.push(Field { name, value });
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

impl<'de> Deserialize<'de> for FieldValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;

        impl<'de> Visitor<'de> for AnyValue {
            type Value = FieldValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a truth value, a text, an array of numbers, or null")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<FieldValue, E> {
                Ok(FieldValue::Number(Number::Bool(value)))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<FieldValue, E> {
                Ok(FieldValue::Number(Number::Integer(value)))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<FieldValue, E> {
                let value = i64::try_from(value).map_err(E::custom)?;
                self.visit_i64(value)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<FieldValue, E> {
                let digits = text.strip_prefix("0x");
                let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                // A text may look like an address. Another spelling is a text, so that the JSON stays the same.
                let number = number.map(Hex).filter(|hex| hex.to_string() == text);
                Ok(match number {
                    Some(hex) => FieldValue::Number(Number::Hex(hex)),
                    None => FieldValue::Text(text.to_owned()),
                })
            }

            fn visit_unit<E: de::Error>(self) -> Result<FieldValue, E> {
                Ok(FieldValue::Unknown)
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<FieldValue, S::Error> {
                let mut list = Vec::new();
                while let Some(number) = seq.next_element()? {
                    list.push(number);
                }
                Ok(FieldValue::List(list))
            }
        }

        deserializer.deserialize_any(AnyValue)
    }
}

/// As a parameter of a function.
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.value {
            FieldValue::Number(Number::Integer(value)) => {
                write!(f, "{name}={}", of_name(name, *value))
            }
            FieldValue::Number(number) => write!(f, "{name}={number}"),
            FieldValue::Text(text) => write!(f, "{name}={text:?}"),
            FieldValue::List(list) => {
                let list: Vec<String> = list.iter().map(Number::to_string).collect();
                write!(f, "{name}=[{}]", list.join(", "))
            }
            FieldValue::Unknown => write!(f, "{name}=…"),
        }
    }
}

/// The schemas are written by hand: a field has any name, and a text may look like an address.
#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::schema::{AnyOfBuilder, ArrayBuilder, Schema, Type};
    use utoipa::openapi::{ObjectBuilder, Ref, RefOr};
    use utoipa::{PartialSchema, ToSchema};

    use super::{FieldValue, Fields};
    use crate::typed::Number;

    impl PartialSchema for Fields {
        fn schema() -> RefOr<Schema> {
            ObjectBuilder::new()
                .additional_properties(Some(Ref::from_schema_name(FieldValue::name())))
                .description(Some(
                    "The fields of a tracepoint's record by their names, in the order of the record.",
                ))
                .into()
        }
    }

    impl ToSchema for Fields {
        fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
            schemas.push((FieldValue::name().into_owned(), FieldValue::schema()));
            FieldValue::schemas(schemas);
        }
    }

    impl PartialSchema for FieldValue {
        fn schema() -> RefOr<Schema> {
            let number = || Ref::from_schema_name(Number::name());
            let of_type = |ty| ObjectBuilder::new().schema_type(ty);
            AnyOfBuilder::new()
                .description(Some(
                    "The value of a field: a number, a text, the elements of an array, or null if the field is outside of the record, or the record has too much text or too many elements.",
                ))
                .item(number())
                .item(of_type(Type::String))
                .item(ArrayBuilder::new().items(number()))
                .item(of_type(Type::Null))
                .into()
        }
    }

    impl ToSchema for FieldValue {
        fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
            schemas.push((Number::name().into_owned(), Number::schema()));
            Number::schemas(schemas);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(values: Vec<(&str, FieldValue)>) -> Fields {
        let field = |(name, value): (&str, FieldValue)| Field {
            name: name.into(),
            value,
        };
        Fields(values.into_iter().map(field).collect())
    }

    fn all_kinds() -> Fields {
        fields(vec![
            ("prev_comm", FieldValue::Text("a\"\x1b".to_owned())),
            ("prev_pid", FieldValue::Number(Number::Integer(-1))),
            ("flags", FieldValue::Number(Number::Integer(0x8000))),
            ("bdev", FieldValue::Number(Number::Hex(Hex(u64::MAX)))),
            ("is_new", FieldValue::Number(Number::Bool(true))),
            ("hex", FieldValue::Text("0x0010".to_owned())),
            (
                "address",
                FieldValue::List(vec![Number::Integer(1), Number::Hex(Hex(1 << 60))]),
            ),
            ("outside", FieldValue::Unknown),
        ])
    }

    #[test]
    fn fields_are_an_object_in_the_order_of_the_record() {
        let json = serde_json::to_string(&all_kinds()).expect("JSON");
        let expected = r#"{"prev_comm":"a\"\u001b","prev_pid":-1,"flags":32768,"bdev":"0xffffffffffffffff","is_new":true,"hex":"0x0010","address":[1,"0x1000000000000000"],"outside":null}"#;
        assert_eq!(json, expected);
        let read: Fields = serde_json::from_str(&json).expect("fields");
        assert_eq!(read, all_kinds());
    }

    #[test]
    fn text_like_an_address_is_the_same_json_again() {
        let text = fields(vec![("comm", FieldValue::Text("0x10".to_owned()))]);
        let json = serde_json::to_string(&text).expect("JSON");
        let read: Fields = serde_json::from_str(&json).expect("fields");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), json);
    }

    #[test]
    fn value_that_is_an_object_is_an_error() {
        assert!(serde_json::from_str::<Fields>(r#"{"a":{"b":1}}"#).is_err());
        assert!(serde_json::from_str::<Fields>(r#"{"a":["text"]}"#).is_err());
    }

    #[test]
    fn people_read_fields_as_parameters() {
        let shown: Vec<String> = all_kinds().0.iter().map(Field::to_string).collect();
        let expected = [
            r#"prev_comm="a\"\u{1b}""#,
            "prev_pid=-1",
            "flags=0x8000",
            "bdev=0xffffffffffffffff",
            "is_new=true",
            r#"hex="0x0010""#,
            "address=[1, 0x1000000000000000]",
            "outside=…",
        ];
        assert_eq!(shown, expected);
    }
}
