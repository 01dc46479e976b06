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
pub(super) fn named(types: &Btf, declared: &str) -> Option<TypeId> {
    match words(declared)[..] {
        ["enum", name] => types.enum_named(name),
        [name] => types.type_named(name),
        _ => None,
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
    let target = declared.strip_suffix('*')?;
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
