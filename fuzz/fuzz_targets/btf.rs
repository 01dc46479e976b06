//! The types in a guest's memory.

#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeSet;
use std::sync::LazyLock;

use address::Gva;
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, fuzz_target};
use introspect::btf::synthetic::{self, sample};
use introspect::btf::{Type, TypeId};
use introspect::modules::synthetic::{Form, types};
use introspect::{Btf, PerCpu, Signature, SymbolTable, SymbolTableBuilder, TaskLayout};

/// The kind of a union.
const UNION: u8 = 5;
const NAMES: [&str; 7] = [
    "outer",
    "flags",
    "module",
    "list_head",
    "task_struct",
    "pcpu_hot",
    "",
];
const FUNCTIONS: [&str; 3] = ["open", "close", "print"];
/// Maximum number of types followed from one name.
const MAX_FOLLOWED: usize = 64;

/// The symbol of the current task.
static SYMBOLS: LazyLock<SymbolTable> = LazyLock::new(|| {
    let mut symbols = SymbolTableBuilder::new();
    symbols.push(Gva(0x35000), 'A', "pcpu_hot");
    symbols.build()
});

/// The blob, and the changes to the blob.
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
    /// Types of the current task.
    Tasks,
    /// Functions whose parameters have members and enumerators.
    Functions,
    /// Any bytes behind a header.
    Any {
        types: Vec<u8>,
        strings: Vec<u8>,
    },
}

fuzz_target!(|case: Case| {
    let has_tasks = matches!(case.blob, Blob::Tasks);
    let has_functions = matches!(case.blob, Blob::Functions);
    let is_whole = case.changes.is_empty() && !matches!(case.blob, Blob::Any { .. });
    let mut blob = match case.blob {
        Blob::Sample => sample(),
        Blob::Layouts => types(Form::Layouts).finish(),
        Blob::Memory => types(Form::Memory).finish(),
        Blob::Tasks => tasks(),
        Blob::Functions => functions(),
        Blob::Any { types, strings } => with_header(&types, &strings),
    };
    for change in &case.changes {
        change.apply(&mut blob, 0);
    }
    // The same types as those of a module.
    let kernel = Btf::parse(sample()).expect("the sample");
    if let Ok(module) = kernel.parse_module(blob.clone()) {
        let types = NAMES.map(|name| module.struct_named(name).map(TypeId::from));
        let types = types.into_iter().flatten();
        types.for_each(|ty| follow(&module, ty));
        let _ = FUNCTIONS.map(|name| check_signature(&module, name));
    }
    let Ok(btf) = Btf::parse(blob) else {
        assert!(!is_whole, "valid types are refused");
        return;
    };
    assert!(!is_whole || btf.is_complete());
    for name in NAMES {
        let types = [
            btf.struct_named(name).map(TypeId::from),
            btf.union_named(name).map(TypeId::from),
            btf.type_named(name),
            btf.enum_named(name),
        ];
        types.into_iter().flatten().for_each(|ty| follow(&btf, ty));
    }
    for name in FUNCTIONS {
        if let Some(function) = btf.func_proto(name) {
            let params = function.params.iter().map(|param| param.ty);
            params.for_each(|ty| follow(&btf, ty));
            follow(&btf, function.returns);
        }
    }
    let shown = FUNCTIONS.map(|name| check_signature(&btf, name));
    if is_whole && has_functions {
        assert_eq!(shown, [Some(6), Some(0), None], "members of `open`");
    }
    let layout = TaskLayout::new(&btf, &SYMBOLS);
    assert!(layout.is_some() || !(is_whole && has_tasks), "no tasks");
    if let Some(layout) = layout {
        assert!((1..=64).contains(&layout.comm_bytes), "{layout:?}");
        let _ = layout.current(u64::MAX, i64::MAX);
    }
    let _ = PerCpu::cpu_number(Some(&btf), &SYMBOLS);
    for variable in btf.section_variables(".data..percpu").take(MAX_FOLLOWED) {
        follow(&btf, variable.ty);
    }
});

/// Types as those of Linux 6.12, where the current task is a member of `pcpu_hot`.
fn tasks() -> Vec<u8> {
    let mut blob = synthetic::Blob::new();
    let byte = blob.int("char", 1);
    let int = blob.int("int", 4);
    let name = blob.array(byte, 16);
    let task = [("pid", int, 8), ("tgid", int, 12), ("comm", name, 0xbc0)];
    let task = blob.structure("task_struct", 0x1000, &task);
    let task = blob.pointer(task);
    let hot = [("current_task", task, 0), ("cpu_number", int, 12 * 8)];
    let hot = blob.structure_in_bits("", (UNION, false), 64, &hot);
    blob.structure("pcpu_hot", 64, &[("", hot, 0)]);
    blob.finish()
}

/// A function with small structs behind its parameters, one of them with nameless parts, and a second function without.
fn functions() -> Vec<u8> {
    let mut blob = synthetic::Blob::new();
    let int = blob.int("int", 4);
    let byte = blob.int("char", 1);
    let constant = blob.constant(byte);
    let text = blob.pointer(constant);
    let mode = blob.enumeration("mode", true, &[("BAD", u32::MAX), ("GOOD", 7)]);
    let both = blob.structure("", 8, &[("hash", int, 0), ("len", int, 4)]);
    let either = blob.structure_in_bits("", (UNION, false), 8, &[("", both, 0), ("mode", mode, 0)]);
    let name = blob.structure("name", 16, &[("", either, 0), ("text", text, 8)]);
    let pair = blob.structure("pair", 8, &[("first", int, 0), ("second", int, 4)]);
    let (to_name, to_pair) = (blob.pointer(name), blob.pointer(pair));
    let params = [("name", to_name), ("pair", to_pair), ("mode", mode)];
    blob.function("open", mode, &params);
    blob.function("close", 0, &[("path", text), ("len", int)]);
    blob.finish()
}

/// The number of members that the parameters of the function show; `None` if the function has no types.
fn check_signature(types: &Btf, function: &str) -> Option<usize> {
    let signature = Signature::of_function(types, function).ok()?;
    assert!(signature.params.len() <= 20, "{signature:?}");
    for param in &signature.params {
        assert!(
            param.name.len() + param.shape.declared.len() < 200,
            "{param:?}"
        );
        let _ = signature.meaning(&param.shape, 7);
    }
    let pointees = signature.params.iter().flat_map(|param| &param.pointee);
    let mut shown = 0;
    for pointee in pointees {
        assert!(
            pointee.bytes <= 32 && pointee.members.len() <= 6,
            "{pointee:?}"
        );
        for member in &pointee.members {
            assert!(
                member.at <= pointee.bytes && member.name.len() < 60,
                "{member:?}"
            );
            let _ = member.word(&[0xff; 32][..pointee.bytes]);
        }
        shown += pointee.members.len();
    }
    Some(shown)
}

fn with_header(types: &[u8], strings: &[u8]) -> Vec<u8> {
    let (types_len, strings_len) = (types.len(), strings.len());
    let words = [0x0001_eb9f, 24, 0, types_len, types_len, strings_len];
    let words = words.map(|word| u32::try_from(word).unwrap_or(u32::MAX).to_le_bytes());
    [words.as_flattened(), types, strings].concat()
}

/// Calls all queries for `first` and for all types reachable from `first`.
fn follow(btf: &Btf, first: TypeId) {
    let mut seen = BTreeSet::new();
    let mut left = vec![first];
    while let Some(ty) = left.pop()
        && seen.len() < MAX_FOLLOWED
    {
        if !seen.insert(ty) {
            continue;
        }
        let _ = (btf.name_of(ty), btf.size_of(ty));
        if let Some(of_enum) = btf.as_enum(ty) {
            let _ = (of_enum.value("GOOD"), of_enum.name(7));
            let _ = of_enum.meaning(5);
            assert!(of_enum.values().take(1 << 20).count() < 1 << 20);
        }
        if let Some(function) = btf.prototype(ty) {
            left.extend(function.params.iter().map(|param| param.ty));
        }
        match btf.get(ty) {
            Some(
                Type::Pointer(to)
                | Type::Typedef(to)
                | Type::Const(to)
                | Type::Volatile(to)
                | Type::Tagged(to)
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
