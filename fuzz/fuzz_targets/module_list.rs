//! The list of modules in a guest's memory, by the guest's types and through the guest's page tables.

#![cfg_attr(fuzzing, no_main)]

use std::sync::LazyLock;

use address::{Gpa, Gva};
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::{Damage, fuzz_target};
use introspect::modules::synthetic::{BASE, COMING, FORMS, Guest, LIVE, types};
use introspect::{Btf, FlatMemory, Module, Modules};

/// A guest with two modules, and the address of the second.
static GUESTS: LazyLock<[(Guest, Gva); 2]> = LazyLock::new(|| {
    FORMS.map(|form| {
        let mut guest = Guest::new(form);
        guest.module(LIVE);
        let second = guest.module(COMING);
        (guest, second)
    })
});

/// Which of the two forms of `struct module`, and the changes to types and memory.
#[derive(Arbitrary, Debug)]
struct Case {
    has_memory_array: bool,
    types: Vec<Damage>,
    memory: Vec<Damage>,
}

fuzz_target!(|case: Case| {
    let form = usize::from(case.has_memory_array);
    let mut blob = types(FORMS[form]).finish();
    for change in &case.types {
        change.apply(&mut blob, 0);
    }
    let Ok(modules) = Btf::parse(blob).map(|btf| Modules::new(&btf)) else {
        return;
    };
    let Ok(modules) = modules else { return };
    let (guest, second) = &GUESTS[form];
    let mut memory = guest.used().to_vec();
    for change in &case.memory {
        change.apply(&mut memory, BASE);
    }
    let memory = FlatMemory::new(Gpa(0), memory);
    let read = modules.read(&memory, &Guest::paging(), &guest.kernel);
    let read = read.unwrap_or_default();
    let is_whole = case.types.is_empty() && case.memory.is_empty();
    assert!(!is_whole || read.len() == 2, "the valid list is refused");
    read.iter().for_each(check);
    let one = modules.read_one(&memory, &Guest::paging(), *second);
    one.iter().for_each(check);
});

fn check(module: &Module) {
    assert!(module.name().bytes().all(|byte| byte.is_ascii_graphic()));
    for symbol in module.symbols() {
        let region = module.region_at(symbol.address).expect("a symbol's region");
        let end = symbol.end().expect("no symbol wraps around");
        assert!(end <= region.range.end, "{symbol:?}");
    }
    for site in module.patch_sites() {
        assert!(module.holds_code(site.address), "{site:?}");
    }
}
