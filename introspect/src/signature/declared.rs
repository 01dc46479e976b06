//! How a value is read whose type is a text in C.

use super::{Kind, Pointee};
use crate::btf::{Btf, TypeId};

/// How a value of the type `declared` is read: `int`, `const char *`, `umode_t`, `enum landlock_rule_type`.
pub(super) fn kind(types: &Btf, declared: &str) -> Kind {
    if let Some(pointer) = pointer(declared) {
        return pointer;
    }
    match (named(types, declared), integer(declared)) {
        (Some(ty), _) => Kind::of(types, ty),
        (None, integer) => integer.unwrap_or(Kind::Word { bytes: 8 }),
    }
}

/// The enum or the type `declared` by its name alone.
fn named(types: &Btf, declared: &str) -> Option<TypeId> {
    match words(declared)[..] {
        ["enum", name] => types.enum_named(name),
        [name] => types.type_named(name),
        _ => None,
    }
}

/// The same, if there is no other of the name.
pub(super) fn sole_named(types: &Btf, declared: &str) -> Option<TypeId> {
    named(types, declared).filter(|_| is_sole(types, declared))
}

/// The same as [`pointee`], if there is no other struct of the name.
pub(super) fn sole_pointee(types: &Btf, declared: &str) -> Option<Pointee> {
    let declared = unqualified(declared);
    let target = declared.strip_suffix('*')?;
    pointee(types, declared).filter(|_| is_sole(types, target))
}

/// Drivers may have different structs and enums of one name.
fn is_sole(types: &Btf, declared: &str) -> bool {
    let name = words(declared).pop();
    name.is_some_and(|name| types.are_named(name) == 1)
}

/// A pointer without the qualifiers behind its star.
fn unqualified(declared: &str) -> &str {
    const QUALIFIERS: [&str; 3] = ["const", "volatile", "restrict"];
    let behind = declared.rfind('*').map_or(0, |star| star + 1);
    let (pointer, words) = declared.split_at(behind);
    let mut words = words.split_whitespace();
    match words.all(|word| QUALIFIERS.contains(&word)) {
        true if behind > 0 => pointer,
        _ => declared,
    }
}

fn words(declared: &str) -> Vec<&str> {
    let words = declared.split_whitespace();
    words.filter(|word| *word != "const").collect()
}

/// How a pointer `declared` so is read; `None` for other types.
pub(super) fn pointer(declared: &str) -> Option<Kind> {
    // A pointer to a function is declared as `int (*)(…)`.
    if declared.contains("(*)") {
        return Some(Kind::Pointer);
    }
    let target = unqualified(declared).strip_suffix('*')?;
    Some(match target.trim() {
        "const char" | "char const" => Kind::String,
        _ => Kind::Pointer,
    })
}

/// The small struct behind a pointer `declared` as `struct NAME *`.
pub(super) fn pointee(types: &Btf, declared: &str) -> Option<Pointee> {
    match words(declared.strip_suffix('*')?)[..] {
        ["struct", name] => Pointee::of_struct(types, types.struct_named(name)?.into()),
        _ => None,
    }
}

/// An integer by the words of C, in any order: types of the kernel have `long unsigned int` for `unsigned long`.
fn integer(declared: &str) -> Option<Kind> {
    let words = words(declared);
    const WORDS: [&str; 6] = ["unsigned", "signed", "int", "long", "short", "char"];
    if words.is_empty() || !words.iter().all(|word| WORDS.contains(word)) {
        return None;
    }
    let has = |word| words.contains(&word);
    let bytes = match () {
        () if has("long") => 8,
        () if has("short") => 2,
        () if has("char") => 1,
        () => 4,
    };
    Some(Kind::Integer {
        bytes,
        signed: !has("unsigned"),
    })
}
