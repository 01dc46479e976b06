//! Types by their names in C.

use introspect::Btf;
use introspect::btf::TypeId;

use super::error::EvaluateError;
use super::tree::TypeName;

/// The number of near names in an error.
const NEAR: usize = 5;

impl TypeName {
    /// The type without the stars.
    ///
    /// # Errors
    ///
    /// If `types` has no type of the name.
    pub fn find(&self, types: &Btf) -> Result<TypeId, EvaluateError> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let found = match words[..] {
            ["struct", name] => types.struct_named(name).map(TypeId::from),
            ["union", name] => types.union_named(name).map(TypeId::from),
            ["enum", name] => types.enum_named(name),
            ["void"] => Some(TypeId::VOID),
            [name] => types.type_named(name).or_else(|| integer(types, &words)),
            _ => integer(types, &words),
        };
        found.ok_or_else(|| {
            let name = self.words.join(" ");
            let last = words.last().copied().unwrap_or_default();
            let near = types.nearest_types(last, NEAR);
            EvaluateError::NoType { name, near }
        })
    }
}

/// An integer type by its words in any order, some of which can be left out: `unsigned long` is `long unsigned int` in BTF.
fn integer(types: &Btf, words: &[&str]) -> Option<TypeId> {
    let known = ["unsigned", "signed", "long", "short", "int", "char"];
    if !words.iter().all(|word| known.contains(word)) {
        return None;
    }
    let has = |word| words.contains(&word);
    let longs = words.iter().filter(|word| **word == "long").count();
    let unsigned = has("unsigned");
    let name = match (has("char"), has("short"), longs) {
        (true, ..) if unsigned => "unsigned char",
        (true, ..) if has("signed") => "signed char",
        (true, ..) => "char",
        (_, true, _) if unsigned => "short unsigned int",
        (_, true, _) => "short int",
        (_, _, 0) if unsigned => "unsigned int",
        (_, _, 0) => "int",
        (_, _, 1) if unsigned => "long unsigned int",
        (_, _, 1) => "long int",
        _ if unsigned => "long long unsigned int",
        _ => "long long int",
    };
    types.type_named(name)
}
