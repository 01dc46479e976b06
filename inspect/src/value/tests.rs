use address::Gva;
use introspect::btf::TypeId;
use serde_json::json;

use super::*;
use crate::fixture::{BASE, Fixture, SLIDE};

const TASK: Gva = Gva(BASE.0 + SLIDE);

fn task(fixture: &Fixture) -> TypeId {
    fixture.types.struct_named("task").expect("a struct").into()
}

fn read(at: Gva, limits: Limits) -> Value {
    let fixture = Fixture::new();
    let view = fixture.view();
    let ty = task(&fixture);
    Reader::new(view, &fixture.types, limits).at(at, ty, None)
}

#[test]
fn struct_is_written_as_an_initializer() {
    let limits = Limits {
        elements: 3,
        ..Limits::default()
    };
    let expected = r#"{
    .pid = -7,
    .mm = 0xffffffff81200400 <init_mm>,
    .comm = "swap\"per",
    .low = -3,
    .flags = WRITE|EXEC (6),
    .whole = 0x100000005,
    .half = 5,
    .grid = {11, 12, 0, … 47 more},
    .own_mm = {
        .pgd = 0xffffffff81200604 <schedule+0x4>,
        .users = 3,
    },
    .is_on = true,
}"#;
    assert_eq!(read(TASK, limits).to_string(), expected);
}

#[test]
fn json_has_the_same_as_structure() {
    let limits = Limits {
        elements: 2,
        ..Limits::default()
    };
    let expected = json!({
        "pid": -7,
        "mm": {"pointer": "0xffffffff81200400", "symbol": "init_mm"},
        "comm": "swap\"per",
        "low": -3,
        "flags": {"number": 6, "name": "WRITE|EXEC"},
        "whole": 0x1_0000_0005_u64,
        "half": 5,
        "grid": [11, 12, {"omitted": 48}],
        "own_mm": {"pgd": {"pointer": "0xffffffff81200604", "symbol": "schedule+0x4"}, "users": 3},
        "is_on": true,
    });
    assert_eq!(read(TASK, limits).to_json(), expected);
}

#[test]
fn missing_page_is_a_fault_of_the_members_in_it() {
    // The page ends behind `grid[1]`.
    let at = Gva(BASE.0 + SLIDE + 4096 - 56);
    let text = read(at, Limits::default()).to_string();
    assert!(text.contains(".pid = 0,\n"), "{text}");
    let grid = ".grid = {0, 0, <fault 0xffffffff81201000>, … 47 more},\n";
    assert!(text.contains(grid), "{text}");
    assert!(
        text.contains(".users = <fault 0xffffffff812010c8>,\n"),
        "{text}"
    );
    assert_eq!(read(Gva(0x10), Limits::default()), Value::Fault(Gva(0x10)));
}

#[test]
fn limits_leave_out_the_rest() {
    let shallow = read(
        TASK,
        Limits {
            depth: 1,
            ..Limits::default()
        },
    );
    assert!(shallow.to_string().contains(".own_mm = …,"), "{shallow}");
    let Value::Struct(fields) = read(
        TASK,
        Limits {
            values: 4,
            ..Limits::default()
        },
    ) else {
        panic!("a struct")
    };
    assert_eq!(fields.len(), 3);
    let few = read(
        TASK,
        Limits {
            characters: 4,
            ..Limits::default()
        },
    );
    assert!(few.to_string().contains(".comm = \"swap\","), "{few}");
}
