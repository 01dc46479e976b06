//! The types in a guest's memory.

#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeSet;

use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, fuzz_target};
use introspect::btf::synthetic::sample;
use introspect::btf::{Type, TypeId};
use introspect::modules::synthetic::{Form, types};
use introspect::{Btf, SymbolTable, TaskLayout};

/// Types that are followed from one name.
const MAX_FOLLOWED: usize = 64;

/// The blob, and the changes to it.
#[derive(Arbitrary, Debug)]
struct Case {
    blob: Blob,
    changes: Vec<Damage>,
}

#[derive(Arbitrary, Debug)]
enum Blob {
    Sample,
    Layouts,
    Memory,
    /// Any bytes behind a header.
    Any {
        types: Vec<u8>,
        strings: Vec<u8>,
    },
}

fuzz_target!(|case: Case| {
    let is_whole = case.changes.is_empty() && !matches!(case.blob, Blob::Any { .. });
    let mut blob = match case.blob {
        Blob::Sample => sample(),
        Blob::Layouts => types(Form::Layouts).finish(),
        Blob::Memory => types(Form::Memory).finish(),
        Blob::Any { types, strings } => with_header(&types, &strings),
    };
    for change in &case.changes {
        change.apply(&mut blob, 0);
    }
    let Ok(btf) = Btf::parse(blob) else {
        assert!(!is_whole, "valid types are refused");
        return;
    };
    assert!(!is_whole || btf.is_complete());
    for name in ["outer", "flags", "module", "list_head", "task_struct", ""] {
        let types = [
            btf.struct_named(name).map(TypeId::from),
            btf.union_named(name).map(TypeId::from),
            btf.type_named(name),
            btf.enum_named(name),
        ];
        types.into_iter().flatten().for_each(|ty| follow(&btf, ty));
    }
    for name in ["open", "print"] {
        if let Some(function) = btf.func_proto(name) {
            let params = function.params.iter().map(|param| param.ty);
            params.for_each(|ty| follow(&btf, ty));
            follow(&btf, function.returns);
        }
    }
    let _ = TaskLayout::new(&btf, &SymbolTable::default());
});

fn with_header(types: &[u8], strings: &[u8]) -> Vec<u8> {
    let (types_len, strings_len) = (types.len(), strings.len());
    let words = [0x0001_eb9f, 24, 0, types_len, types_len, strings_len];
    let words = words.map(|word| u32::try_from(word).unwrap_or(u32::MAX).to_le_bytes());
    [words.as_flattened(), types, strings].concat()
}

/// Asks everything of `first` and of the types that it leads to.
fn follow(btf: &Btf, first: TypeId) {
    let mut seen = BTreeSet::new();
    let mut left = vec![first];
    while let Some(ty) = left.pop()
        && seen.len() < MAX_FOLLOWED
    {
        if !seen.insert(ty) {
            continue;
        }
        let _ = (btf.name_of(ty), btf.size_of(ty), btf.array_len(ty));
        let _ = (btf.enum_value(ty, "GOOD"), btf.enum_name(ty, 7));
        assert!(btf.enum_values(ty).take(1 << 20).count() < 1 << 20);
        if let Some(function) = btf.prototype(ty) {
            left.extend(function.params.iter().map(|param| param.ty));
        }
        match btf.get(ty) {
            Some(
                Type::Pointer(to)
                | Type::Typedef(to)
                | Type::Qualified(to)
                | Type::Function(to)
                | Type::Variable(to)
                | Type::Array { element: to, .. },
            ) => left.push(to),
            Some(Type::Struct(id) | Type::Union(id)) => {
                let names = btf.member_names(id).take(MAX_FOLLOWED);
                for name in names.chain(["missing", "list.next", "inner.b"]) {
                    if let Some(member) = btf.member(id, name) {
                        assert!(member.bits.is_none_or(|bits| bits.offset < 8));
                        left.push(member.ty);
                    }
                }
            }
            _ => (),
        }
    }
}
