use address::Gva;
use introspect::Btf;
use introspect::btf::TypeId;
use introspect::btf::synthetic::Blob;
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
    let few = read(
        TASK,
        Limits {
            values: 4,
            ..Limits::default()
        },
    );
    assert!(
        few.to_string()
            .ends_with(".comm = \"swap\\\"per\",\n    … 6 more\n}"),
        "{few}"
    );
    assert_eq!(few.to_json()["…"], json!({"omitted": 6}));
    let few = read(
        TASK,
        Limits {
            characters: 4,
            ..Limits::default()
        },
    );
    assert!(few.to_string().contains(".comm = \"swap\"…,"), "{few}");
    assert_eq!(few.to_json()["comm"], json!({"cut": "swap"}));
}

#[test]
fn text_before_a_missing_page_is_cut_and_behind_it_is_a_fault() {
    let mut fixture = Fixture::new();
    fixture.fill(4096 - 4, b"abcd");
    let reader = |at| {
        let fixture = &fixture;
        let view = fixture.view();
        Reader::new(view, &fixture.types, Limits::default()).at(at, task(fixture), None)
    };
    // The page ends behind four characters of `comm`, which is at 16.
    let end = BASE.0 + SLIDE + 4096;
    assert_eq!(
        reader(Gva(end - 20)).to_json()["comm"],
        json!({"cut": "abcd"})
    );
    let behind = reader(Gva(end - 16)).to_json();
    assert_eq!(behind["comm"], json!({"fault": format!("{end:#x}")}));
}

#[test]
fn text_beyond_the_largest_object_is_left_out() {
    let mut blob = Blob::new();
    let char = blob.int("char", 1);
    let text = blob.array(char, 16);
    blob.structure("far", 300 << 10, &[("text", text, 299 << 10)]);
    let types = Btf::parse(blob.finish()).expect("types");
    let fixture = Fixture::new();
    let far = types.struct_named("far").expect("a struct").into();
    let value = Reader::new(fixture.view(), &types, Limits::default()).at(TASK, far, None);
    assert_eq!(value.to_json(), json!({"text": {"omitted": true}}));
}

fn number(values: &[(&str, u32)], word: u64) -> Value {
    let mut blob = Blob::new();
    blob.enumeration("numbers", false, values);
    let types = Btf::parse(blob.finish()).expect("types");
    let ty = types.enum_named("numbers").expect("an enum");
    let fixture = Fixture::new();
    Reader::new(fixture.view(), &types, Limits::default()).of_word(word, ty)
}

#[test]
fn only_flags_are_combined() {
    let flags = [("NONE", 0), ("A", 1), ("B", 2), ("C", 4), ("BOTH", 6)];
    assert_eq!(number(&flags, 5).to_string(), "A|C (5)");
    assert_eq!(number(&flags, 9).to_string(), "A|0x8 (9)");
    assert_eq!(number(&flags, 8).to_string(), "8");
    let row = [("ONE", 1), ("TWO", 2), ("THREE", 3), ("FOUR", 4)];
    assert_eq!(number(&row, 5).to_string(), "5");
    let states = [("ONE", 1), ("TWO", 2), ("TEN", 10)];
    assert_eq!(number(&states, 3).to_string(), "3");
}

#[test]
fn large_numbers_are_hexadecimal_text_in_json() {
    let fixture = Fixture::new();
    let enum64 = |is_signed| {
        let mut blob = Blob::new();
        let body = [blob.string("LAST"), u32::MAX, u32::MAX];
        blob.record("wide", (19, is_signed), 1, 8, &body);
        let types = Btf::parse(blob.finish()).expect("types");
        let ty = types.enum_named("wide").expect("an enum");
        Reader::new(fixture.view(), &types, Limits::default()).of_word(u64::MAX, ty)
    };
    let last = enum64(false);
    assert_eq!(last.to_string(), "LAST (0xffffffffffffffff)");
    let expected = json!({"number": "0xffffffffffffffff", "name": "LAST"});
    assert_eq!(last.to_json(), expected);
    assert_eq!(
        enum64(true).to_json(),
        json!({"number": -1, "name": "LAST"})
    );
    let least = Value::Signed(i64::MIN).to_json();
    assert_eq!(least, json!("0x8000000000000000"));
}
