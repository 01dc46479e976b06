//! Lines of JSON, compared with `docs/events.schema.json`.

use serde_json::{Value, json};

const SCHEMA: &str = include_str!("../../docs/events.schema.json");

/// Panics at a line that does not match the schema, or has a key that the schema does not describe.
pub(crate) fn assert_lines_match(lines: &str) {
    let mut schema: Value = serde_json::from_str(SCHEMA).expect("JSON");
    // The published schema allows new keys.
    let kinds = schema["oneOf"].as_array_mut().expect("kinds of events");
    for kind in kinds {
        kind["unevaluatedProperties"] = json!(false);
    }
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    for line in lines.lines() {
        let event: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let errors: Vec<String> = validator
            .iter_errors(&event)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{line}\n{errors:#?}");
    }
}

#[test]
#[should_panic(expected = "is not valid")]
fn unknown_key_does_not_match() {
    assert_lines_match(r#"{"type":"note","ts_ns":1,"text":"a","unknown":1}"#);
}
