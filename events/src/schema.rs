//! The JSON Schema of events.

use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema as _, ToSchema as _};

use crate::Event;

/// Grows with a change after which readers of the last version misread an event. A new key is no such change.
pub const SCHEMA_VERSION: u32 = 1;
/// The references in schemas of OpenAPI, and in a schema of its own.
const COMPONENTS: &str = "#/components/schemas/";
const DEFINITIONS: &str = "#/$defs/";

/// The schema of a line of a run's output; `docs/events.schema.json` is a copy.
///
/// # Errors
///
/// If a type's schema is not JSON.
pub fn event_schema() -> Result<Value, serde_json::Error> {
    let mut parts: Vec<(String, RefOr<Schema>)> = Vec::new();
    Event::schemas(&mut parts);
    let definitions = parts
        .into_iter()
        .map(|(name, schema)| Ok((name, serde_json::to_value(schema)?)))
        .collect::<Result<Map<_, _>, serde_json::Error>>()?;
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": format!("urn:hyprobe:events:{SCHEMA_VERSION}"),
        "title": "A line of `hyprobe run --format json`",
    });
    if let (Some(schema), Value::Object(event)) = (
        schema.as_object_mut(),
        serde_json::to_value(Event::schema())?,
    ) {
        schema.extend(event);
        schema.insert("$defs".to_owned(), Value::Object(definitions));
    }
    refer_to_definitions(&mut schema);
    Ok(schema)
}

fn refer_to_definitions(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::String(to) if key == "$ref" => {
                        *to = to.replacen(COMPONENTS, DEFINITIONS, 1);
                    }
                    other => refer_to_definitions(other),
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(refer_to_definitions),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(schema: &Value) -> Vec<&str> {
        match schema {
            Value::Object(members) => members
                .iter()
                .flat_map(|(key, value)| match value {
                    Value::String(to) if key == "$ref" => vec![to.as_str()],
                    other => references(other),
                })
                .collect(),
            Value::Array(elements) => elements.iter().flat_map(references).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn every_reference_leads_to_a_definition() {
        let schema = event_schema().expect("a schema");
        let definitions = schema["$defs"].as_object().expect("definitions");
        let references = references(&schema);
        assert!(references.len() > 10, "{references:?}");
        for to in references {
            let name = to.strip_prefix(DEFINITIONS).expect(to);
            assert!(definitions.contains_key(name), "{to}");
        }
    }

    #[test]
    fn copy_in_the_documentation_is_the_schema() {
        let copy = include_str!("../../docs/events.schema.json");
        let copy: Value = serde_json::from_str(copy).expect("JSON");
        let made = "cargo run -p hyprobe-events --features openapi --example schema > docs/events.schema.json";
        assert_eq!(copy, event_schema().expect("a schema"), "{made}");
    }
}
