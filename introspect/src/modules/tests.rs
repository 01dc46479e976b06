use address::{Gpa, Gva};
use proptest::prelude::*;

use super::{
    Module, ModuleState, Modules, ModulesError, RegionKind,
    synthetic::{BASE, COMING, FORMS, Form, Guest, LIVE, Shape, types},
};
use crate::{Btf, FlatMemory, PatchKind, PatchSite, PatchSites};

const UNFORMED: Shape = Shape {
    name: "half",
    state: 3,
    init: true,
};

fn read(guest: &Guest) -> Result<Vec<Module>, ModulesError> {
    let modules = Modules::new(&guest.btf()).expect("types of modules");
    modules.read(&guest.memory, &Guest::paging(), &guest.kernel)
}

fn read_one(guest: &Guest, address: Gva) -> Result<Module, ModulesError> {
    let modules = Modules::new(&guest.btf()).expect("types of modules");
    modules.read_one(&guest.memory, &Guest::paging(), address)
}

/// Name, letter and size of each symbol.
fn symbols(module: &Module) -> Vec<(&str, char, u64)> {
    let row = |symbol: &crate::Symbol| (symbol.kind, symbol.size);
    let rows = module.symbols().iter();
    rows.map(|symbol| (&*symbol.name, row(symbol).0, row(symbol).1))
        .collect()
}

#[test]
fn both_forms_give_the_same_modules() {
    for form in FORMS {
        let mut guest = Guest::new(form);
        assert_eq!(read(&guest), Ok(vec![]), "{form:?}");
        let first = guest.module(LIVE);
        let second = guest.module(COMING);
        let modules = read(&guest).expect("a list");
        let states = modules
            .iter()
            .map(|module| (module.address(), module.name(), module.state()));
        let expected = [
            (first, "steady", ModuleState::Live),
            (second, "fresh", ModuleState::Coming),
        ];
        assert!(states.eq(expected), "{form:?}: {modules:?}");
        assert!(modules.iter().all(|module| module.unread().is_empty()));

        let kept = [
            ("helper", 't', 0x40),
            ("exported", 'T', 0x20),
            ("__SCT__own", 't', 8),
            ("table", 'd', 0xff8),
        ];
        assert_eq!(symbols(&modules[0]), kept, "{form:?}");
        let with_init = [&kept[..], &[("init_module", 'T', 0x30)]].concat();
        assert_eq!(symbols(&modules[1]), with_init, "{form:?}");
        let text = modules[1].symbols()[0].address;
        assert_eq!(modules[1].symbols()[0].to_string(), "helper [fresh]");
        assert!(modules[1].holds_code(text) && !modules[1].is_init(text));
        let init = modules[1].symbols()[4].address;
        assert!(modules[1].holds_code(init) && modules[1].is_init(init));
        let kinds = modules[1].regions().iter().map(|region| region.kind);
        assert!(kinds.eq([RegionKind::Text, RegionKind::Data, RegionKind::InitText]));
        assert_eq!(read_one(&guest, second).as_ref(), Ok(&modules[1]));
    }
}

#[test]
fn sites_join_the_kernels_own() {
    let mut guest = Guest::new(Form::Memory);
    let module = guest.module(LIVE);
    let module = read_one(&guest, module).expect("a module");
    let text = module.regions()[0].range.start;
    let site = |offset, len, kind| PatchSite {
        address: text.wrapping_add(offset),
        len,
        kind,
        target: None,
    };
    let expected = [
        site(0, 5, PatchKind::Ftrace),
        PatchSite {
            target: Some(text.wrapping_add(0x30)),
            ..site(0x20, 2, PatchKind::JumpLabel)
        },
        site(0x48, 5, PatchKind::StaticCall),
        site(0x60, 8, PatchKind::StaticCall),
    ];
    assert_eq!(module.patch_sites(), expected);
    let own = PatchSite {
        address: Gva(0xffff_ffff_8100_0000),
        len: 1,
        kind: PatchKind::SmpLock,
        target: None,
    };
    let sites: PatchSites = [own].into_iter().collect();
    let sites = sites.with_module(&module);
    assert_eq!(sites.len(), 5);
    assert_eq!(sites.overlapping(own.address, 1), Some(own));
    assert_eq!(
        sites.overlapping(text.wrapping_add(4), 1),
        Some(expected[0])
    );
}

#[test]
fn unformed_module_is_left_out() {
    let mut guest = Guest::new(Form::Layouts);
    let half = guest.module(UNFORMED);
    guest.module(LIVE);
    let modules = read(&guest).expect("a list");
    assert_eq!(modules.len(), 1);
    let half = read_one(&guest, half).expect("a struct module");
    assert_eq!(half.state(), ModuleState::Unformed);
    assert!(half.symbols().is_empty() && half.patch_sites().is_empty());
}

#[test]
fn a_broken_list_is_refused() {
    let mut guest = Guest::new(Form::Layouts);
    let module = guest.module(LIVE);
    let link = Guest::link(module);
    let to = |guest: &mut Guest, next: Gva| {
        guest.put(link, &next.0.to_le_bytes());
        read(guest).expect_err("broken")
    };
    assert!(matches!(
        to(&mut guest, Gva(0)),
        ModulesError::Unreadable { .. }
    ));
    let outside = Gva(BASE - 0x1000);
    assert!(matches!(
        to(&mut guest, outside),
        ModulesError::Unreadable { .. }
    ));
    assert_eq!(to(&mut guest, link), ModulesError::Endless { limit: 4096 });
    let empty = guest.room(0x1000, 8);
    assert!(matches!(
        to(&mut guest, empty),
        ModulesError::NotAModule { .. }
    ));
    guest.put32(module, 17);
    let why = "it has no state";
    let address = module;
    assert_eq!(
        read_one(&guest, module),
        Err(ModulesError::NotAModule { address, why })
    );
    let modules = Modules::new(&guest.btf()).expect("types of modules");
    let nameless = crate::SymbolTable::default();
    let without = modules.read(&guest.memory, &Guest::paging(), &nameless);
    assert_eq!(without, Err(ModulesError::NoList));
}

#[test]
fn modules_in_front_of_a_break_are_described() {
    let mut guest = Guest::new(Form::Layouts);
    let module = guest.module(LIVE);
    let described = |guest: &Guest| {
        let modules = Modules::new(&guest.btf()).expect("types of modules");
        let head = guest.kernel.address_of("modules").expect("the list");
        modules.described(&guest.memory, &Guest::paging(), head)
    };
    let found = described(&guest);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].address(), module);
    assert!(!found[0].regions().is_empty() && found[0].symbols().is_empty());
    guest.put(Guest::link(module), &0_u64.to_le_bytes());
    assert_eq!(described(&guest), found);
}

#[test]
fn numbers_that_are_too_large_cost_only_their_table() {
    let mut guest = Guest::new(Form::Memory);
    let module = guest.module(LIVE);
    let count = guest.symbol_count(module);
    guest.put32(count, u32::MAX);
    guest.put32(Guest::ftrace_count(module), u32::MAX);
    let read = read(&guest).expect("a list");
    let many = |what| ModulesError::TooMany {
        what,
        count: u64::from(u32::MAX),
    };
    let expected = [many("symbols of a module"), many("a module's ftrace sites")];
    assert_eq!(read[0].unread(), expected);
    assert_eq!(read[0].patch_sites().len(), 2);
}

#[test]
fn symbols_that_share_a_long_name_are_not_for_free() {
    let mut guest = Guest::new(Form::Layouts);
    let module = guest.module(LIVE);
    guest.share_one_name(module, 1 << 18);
    let read = read(&guest).expect("a list");
    let too_large = |error: &ModulesError| matches!(error, ModulesError::TooLarge { .. });
    assert!(
        read[0].unread().iter().any(too_large),
        "{:?}",
        read[0].unread()
    );
    assert!(read[0].symbols().is_empty());
}

#[test]
fn types_without_modules_are_refused() {
    let btf = Btf::parse(crate::btf::synthetic::Blob::new().finish()).expect("empty");
    let missing = Modules::new(&btf).expect_err("no types");
    assert_eq!(missing, ModulesError::NoType { what: "module" });
}

fn try_all(memory: &FlatMemory, guest: &Guest, btf: &Btf, module: Gva) {
    if let Ok(modules) = Modules::new(btf) {
        let _ = modules.read(memory, &Guest::paging(), &guest.kernel);
        let _ = modules.read_one(memory, &Guest::paging(), module);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_damage_breaks_it(
        in_memory in proptest::collection::vec((0_u64..0x9000, any::<u8>()), 0..64),
        in_types in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4),
        form in proptest::sample::select(FORMS.to_vec()),
    ) {
        let mut guest = Guest::new(form);
        guest.module(LIVE);
        let module = guest.module(COMING);
        let mut memory = guest.memory.clone();
        for (at, byte) in in_memory {
            // The page tables stay: without them nothing is read.
            memory.write(Gpa(0x2000 + at), &[byte]).expect("within memory");
        }
        try_all(&memory, &guest, &guest.btf(), module);
        let mut blob = types(form).finish();
        for (at, byte) in in_types {
            let at = usize::from(at) % blob.len();
            blob[at] = byte;
        }
        if let Ok(btf) = Btf::parse(blob) {
            try_all(&memory, &guest, &btf, module);
        }
    }
}
