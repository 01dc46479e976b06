//! Lines of JSON, compared with `docs/events.schema.json`.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

const SCHEMA: &str = include_str!("../../docs/events.schema.json");

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let mut schema: Value = serde_json::from_str(SCHEMA).expect("JSON");
    let mut parts = BTreeSet::new();
    collect_parts(&schema, &mut parts);
    close(&mut schema, &parts);
    jsonschema::validator_for(&schema).expect("a schema")
});

/// Adds the definitions that other objects contain as parts.
fn collect_parts(schema: &Value, parts: &mut BTreeSet<String>) {
    let inner: Vec<&Value> = match schema {
        Value::Object(object) => object.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => return,
    };
    let all = schema["allOf"].as_array().into_iter().flatten();
    parts.extend(all.filter_map(|part| Some(part["$ref"].as_str()?.to_owned())));
    for schema in inner {
        collect_parts(schema, parts);
    }
}

/// Makes a key that the schema does not describe an error, at any depth: the published schema allows new keys. A part describes some keys
/// of its object only, so the containing object is closed instead.
fn close(schema: &mut Value, parts: &BTreeSet<String>) {
    match schema {
        Value::Object(object) => close_object(object, parts),
        Value::Array(items) => items.iter_mut().for_each(|item| close(item, parts)),
        _ => {}
    }
}

fn close_object(schema: &mut Map<String, Value>, parts: &BTreeSet<String>) {
    let is_part = |target: &str| parts.contains(target);
    let refers_to_part = schema
        .get("$ref")
        .and_then(Value::as_str)
        .is_some_and(is_part);
    if schema.contains_key("allOf") || refers_to_part {
        schema.insert("unevaluatedProperties".to_owned(), json!(false));
    } else if schema.contains_key("properties") {
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
    for (key, value) in schema {
        match (key.as_str(), value) {
            ("allOf", Value::Array(contained)) => {
                let properties = contained
                    .iter_mut()
                    .filter_map(|part| part.get_mut("properties"));
                properties.for_each(|part| close(part, parts));
            }
            ("$defs", Value::Object(definitions)) => {
                for (name, definition) in definitions {
                    let inner = match is_part(&format!("#/$defs/{name}")) {
                        true => definition.get_mut("properties"),
                        false => Some(definition),
                    };
                    inner.into_iter().for_each(|inner| close(inner, parts));
                }
            }
            (_, value) => close(value, parts),
        }
    }
}

/// Panics at a line that does not match the schema, or has a key that the schema does not describe.
pub(crate) fn assert_lines_match(lines: &str) {
    for line in lines.lines() {
        let event: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let errors: Vec<String> = VALIDATOR
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

/// A hit with a parameter and a task.
fn hit() -> Value {
    let registers = "rax rbx rcx rdx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15 rip rflags";
    let registers = registers
        .split(' ')
        .map(|name| (name.to_owned(), json!("0x0")));
    let registers: Map<String, Value> = registers.collect();
    json!({
        "type": "hit", "probe": "kprobe:f", "ts_ns": 1, "vcpu": 0, "ip": "0x1", "symbol": "f+0x0", "regs": registers,
        "args": ["0x0", "0x0", "0x0", "0x0", "0x0", "0x0"],
        "params": [{"name": "a", "type": "struct s *", "value": "0x1", "members": {"whole": [{"name": "b", "type": "int", "value": 2}]}}],
        "task": {"pid": 1, "tid": 1, "comm": "init", "parent": {"pid": 0, "comm": "swapper/0"}},
    })
}

#[test]
fn known_nested_keys_match() {
    assert_lines_match(&hit().to_string());
}

#[test]
fn unknown_nested_key_does_not_match() {
    for object in [
        "/regs",
        "/task",
        "/task/parent",
        "/params/0",
        "/params/0/members",
        "/params/0/members/whole/0",
    ] {
        let mut event = hit();
        event.pointer_mut(object).expect("an object")["unknown"] = json!(1);
        assert!(!VALIDATOR.is_valid(&event), "{object}");
    }
}
