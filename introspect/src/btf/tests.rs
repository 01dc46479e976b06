use proptest::prelude::*;

use super::{
    BitField, Btf, BtfError, Int, Member, SharedProto, Type, TypeId, declaration, format,
    synthetic::{Blob, sample},
};

fn parse(blob: Blob) -> Btf {
    Btf::parse(blob.finish()).expect("a blob")
}

fn sample_btf() -> Btf {
    Btf::parse(sample()).expect("the sample")
}

#[test]
fn members_are_found_by_their_paths() {
    let btf = sample_btf();
    let outer = btf.struct_named("outer").expect("a struct");
    let place = |path| {
        let member = btf.member(outer, path)?;
        assert_eq!(member.bits, None, "{path}");
        Some((member.offset_bytes, member.size_bytes))
    };
    assert_eq!(place("first"), Some((0, 4)));
    assert_eq!(place("half"), Some((8, 4)));
    assert_eq!(place("whole"), Some((8, 8)));
    assert_eq!(place("inner"), Some((16, 16)));
    assert_eq!(place("inner.b"), Some((24, 8)));
    assert_eq!(place("grid"), Some((32, 24)));
    assert_eq!(place("tail"), Some((56, 8)));
    for path in ["", ".", "inner.", "inner.c", "first.a", "nothing", "a"] {
        assert_eq!(place(path), None, "{path:?}");
    }
    let names: Vec<_> = btf.member_names(outer).collect();
    assert_eq!(names, ["first", "inner", "grid", "tail"]);
    assert_eq!(btf.size_of(outer), Some(72));
    let grid = btf.member(outer, "grid").expect("an array");
    assert!(matches!(btf.get(grid.ty), Some(Type::Array { len: 2, .. })));
}

#[test]
fn bit_fields_have_offset_and_width() {
    let btf = sample_btf();
    let flags = btf.struct_named("flags").expect("a struct");
    let bits = btf.member(flags, "bits").expect("a bit field");
    let expected = Member {
        offset_bytes: 0,
        size_bytes: 2,
        bits: Some(BitField {
            offset: 3,
            size: 12,
        }),
        ty: bits.ty,
    };
    assert_eq!(bits, expected);
    let plain = btf.member(flags, "plain").expect("a member");
    assert_eq!((plain.offset_bytes, plain.bits), (4, None));
}

#[test]
fn names_lead_to_types_of_their_kind_only() {
    let btf = sample_btf();
    assert_eq!(btf.struct_named("int"), None);
    assert_eq!(btf.union_named("outer"), None);
    assert_eq!(btf.enum_named("outer"), None);
    assert_eq!(btf.struct_named(""), None);
    let alias = btf.type_named("alias_t").expect("a typedef");
    assert_eq!(btf.name_of(alias), Some("alias_t"));
    assert_eq!(btf.size_of(alias), Some(8));
    let long = Int {
        size_bytes: 8,
        bits: 64,
        signed: false,
        boolean: false,
    };
    let stripped = btf.stripped(alias).expect("it ends");
    assert_eq!(btf.get(stripped), Some(Type::Int(long)));
    assert_eq!(btf.size_of(TypeId::VOID), None);
}

#[test]
fn enumerators_have_values_and_back() {
    let btf = sample_btf();
    let state = btf.enum_named("state").expect("an enum");
    let state = btf.as_enum(state).expect("an enum");
    assert_eq!(state.value("FINE"), Some(7));
    assert_eq!(state.name(-1), Some("BAD"));
    assert_eq!(state.values().count(), 3);
    let mask = btf.enum_named("mask").expect("an enum");
    let mask = btf.as_enum(mask).expect("an enum");
    assert_eq!(mask.value("TOP"), Some(1 << 31));

    let mut blob = Blob::new();
    let name = blob.int("LOW", 4);
    let body = [1, 5, 1];
    let wide = blob.record("wide", (format::ENUM64, false), 1, 8, &body);
    let btf = parse(blob);
    assert_eq!(btf.name_of(TypeId(name)), Some("LOW"));
    let wide = btf.as_enum(TypeId(wide)).expect("an enum");
    assert_eq!(wide.name((1 << 32) + 5), Some("LOW"));
    assert!(btf.as_enum(TypeId(name)).is_none());
}

#[test]
fn functions_have_parameters() {
    let btf = sample_btf();
    let open = btf.func_proto("open").expect("a function");
    let names: Vec<_> = open
        .params
        .iter()
        .map(|param| param.name.as_deref())
        .collect();
    assert_eq!(names, [Some("where"), None]);
    assert!(!open.variadic);
    assert_eq!(btf.name_of(open.returns), Some("int"));
    let print = btf.func_proto("print").expect("a function");
    assert_eq!((print.params.len(), print.variadic), (1, true));
    assert_eq!(print.returns, TypeId::VOID);
    assert_eq!(btf.func_proto("outer"), None);
}

#[test]
fn unknown_kind_is_skipped_if_its_length_is_given() {
    let with = |told: bool| {
        let mut blob = Blob::new();
        blob.int("before", 4);
        blob.record("new", (77, true), 3, 0, &[1, 2, 3, 4]);
        blob.int("behind", 4);
        if told {
            blob.layout(77, 4, 4);
        }
        parse(blob)
    };
    let told = with(true);
    assert!(told.is_complete());
    assert!(told.type_named("behind").is_some());
    assert_eq!(told.get(TypeId(2)), Some(Type::Other));
    let untold = with(false);
    assert!(!untold.is_complete());
    assert!(untold.type_named("before").is_some());
    assert_eq!(untold.type_named("behind"), None);
}

#[test]
fn circular_types_are_absent() {
    let mut blob = Blob::new();
    let typedef = blob.record("ring", (format::TYPEDEF, false), 0, 1, &[]);
    let array = blob.record("", (format::ARRAY, false), 0, 0, &[2, 2, 2]);
    let within = [("", 3, 0), ("", 3, 0), ("", 3, 0), ("", 3, 0)];
    blob.structure("nest", 8, &within);
    let btf = parse(blob);
    assert_eq!(btf.stripped(TypeId(typedef)), None);
    assert_eq!(btf.size_of(TypeId(array)), None);
    let nest = btf.struct_named("nest").expect("a struct");
    assert_eq!(btf.member(nest, "x"), None);
}

/// The types of a module on top of the sample: a struct with a member of the kernel's `inner`, and functions.
fn module_on_sample() -> Btf {
    let kernel = sample_btf();
    let inner = kernel.struct_named("inner").expect("a struct");
    let number = TypeId::from(inner).number();
    let mut blob = Blob::on(&kernel);
    let short = blob.int("short", 2);
    let own = blob.structure("own", 24, &[("s", short, 0), ("i", number, 8)]);
    let pointer = blob.pointer(own);
    blob.function("probe", short, &[("own", pointer), ("inner", number)]);
    blob.function("open", 0, &[]);
    kernel.parse_module(blob.finish()).expect("a module")
}

#[test]
fn types_of_a_module_continue_the_kernels() {
    let module = module_on_sample();
    let own = module.struct_named("own").expect("a struct");
    let b = module.member(own, "i.b").expect("a member");
    assert_eq!((b.offset_bytes, b.size_bytes), (16, 8));
    let outer = module.struct_named("outer").expect("the kernel's");
    assert_eq!(module.size_of(outer), Some(72));
    let probe = module.func_proto("probe").expect("a function");
    assert_eq!(probe.params[0].name.as_deref(), Some("own"));
    assert_eq!(declaration(&module, probe.params[0].ty), "struct own *");
    assert_eq!(declaration(&module, probe.params[1].ty), "struct inner");
    assert_eq!(module.name_of(probe.returns), Some("short"));
    assert_eq!(module.len(), sample_btf().len() + 7);
}

#[test]
fn function_of_a_module_hides_the_kernels_function_of_the_name() {
    let SharedProto::Sole(open) = module_on_sample().shared_proto("open") else {
        panic!("there is one")
    };
    assert!(open.params.is_empty());
    let SharedProto::Sole(print) = module_on_sample().shared_proto("print") else {
        panic!("the kernel has one")
    };
    assert!(print.variadic);
}

#[test]
fn name_with_a_control_character_is_no_name() {
    let mut blob = Blob::new();
    let line = blob.int("two\nlines", 4);
    let plain = blob.int("one line", 4);
    let btf = parse(blob);
    assert_eq!(btf.name_of(TypeId(line)), None);
    assert_eq!(btf.name_of(TypeId(plain)), Some("one line"));
}

#[test]
fn module_with_many_long_names_is_refused() {
    let kernel = Btf::parse(sample()).expect("the sample");
    let name = "n".repeat(500);
    let named = |count| {
        let mut blob = Blob::on(&kernel);
        for _ in 0..count {
            blob.int(&name, 4);
        }
        kernel.parse_module(blob.finish())
    };
    assert_eq!(
        named(100).map(|types| types.len()).ok(),
        Some(kernel.len() + 100)
    );
    let refused = named(20_000).expect_err("ten megabytes of names");
    assert!(matches!(refused, BtfError::Names { .. }), "{refused}");
}

#[test]
fn module_on_an_incomplete_kernel_is_refused() {
    let mut kernel = Blob::new();
    kernel.record("new", (77, true), 3, 0, &[1, 2, 3, 4]);
    let kernel = parse(kernel);
    let refused = kernel.parse_module(Blob::on(&kernel).finish());
    assert!(matches!(refused, Err(BtfError::IncompleteBase)));
}

#[test]
fn other_bytes_are_refused() {
    let refused = |blob: &[u8]| Btf::parse(blob).expect_err("not BTF");
    assert!(matches!(
        refused(&[]),
        BtfError::Section {
            section: "header",
            ..
        }
    ));
    assert!(matches!(refused(&[0; 64]), BtfError::Header { .. }));
    let good = sample();
    let cut = refused(&good[..good.len() - 1]);
    assert!(matches!(
        cut,
        BtfError::Section {
            section: "string",
            ..
        }
    ));
    let mut padded = good;
    padded.extend([0; 100]);
    assert!(Btf::parse(padded).expect("padding").is_complete());
}

/// Runs every query for every type number.
fn ask(btf: &Btf) {
    for number in 0..=u32::try_from(btf.len())
        .unwrap_or(u32::MAX)
        .saturating_add(1)
    {
        let ty = TypeId(number);
        let _ = (btf.get(ty), btf.name_of(ty), btf.stripped(ty));
        let _ = (btf.size_of(ty), btf.prototype(ty));
        let _ = btf.as_enum(ty).map(|it| it.values().count());
        if let Some(id) = btf.as_struct(ty) {
            for path in ["tail", "inner.b", "half", "missing"] {
                let _ = btf.member(id, path);
            }
        }
    }
    for name in ["outer", "state", "open", "print", "alias_t"] {
        let _ = (btf.struct_named(name), btf.enum_named(name));
        let _ = (btf.func_proto(name), btf.type_named(name));
    }
}

proptest! {
    #[test]
    fn no_damage_breaks_it(changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..24)) {
        let mut blob = sample();
        for (at, byte) in changes {
            let at = usize::from(at) % blob.len();
            blob[at] = byte;
        }
        if let Ok(btf) = Btf::parse(blob) {
            ask(&btf);
        }
    }

    #[test]
    fn no_damage_to_a_module_breaks_it(changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..24)) {
        let kernel = sample_btf();
        let mut blob = sample();
        for (at, byte) in changes {
            let at = usize::from(at) % blob.len();
            blob[at] = byte;
        }
        if let Ok(module) = kernel.parse_module(blob) {
            ask(&module);
        }
    }

    #[test]
    fn no_sections_break_it(
        types in proptest::collection::vec(any::<u8>(), 0..400),
        strings in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let words = [0x0001_eb9f, 24, 0, types.len(), types.len(), strings.len()];
        let mut blob: Vec<u8> = words
            .iter()
            .flat_map(|&word| u32::try_from(word).expect("small").to_le_bytes())
            .collect();
        blob.extend(types);
        blob.extend(strings);
        ask(&Btf::parse(blob).expect("sections within the blob"));
    }
}
