use std::sync::Arc;

use address::Gva;
use proptest::prelude::*;

use super::{SymbolTable, SymbolTableBuilder};

const TEXT: u64 = 0xffff_ffff_8100_0000;

fn table(symbols: &[(u64, char, &str)]) -> SymbolTable {
    let mut builder = SymbolTableBuilder::new();
    for &(address, kind, name) in symbols {
        assert!(builder.push(Gva(address), kind, name), "{name}");
    }
    builder.build()
}

fn names<I: Iterator<Item = super::Symbol>>(symbols: I) -> Vec<String> {
    symbols.map(|symbol| symbol.name).collect()
}

fn shown(table: &SymbolTable, address: u64) -> Option<String> {
    table.resolve(Gva(address)).map(|place| place.to_string())
}

#[test]
fn addresses_resolve_to_the_symbol_at_or_below() {
    let table = table(&[(TEXT + 0x40, 'T', "vfs_write"), (TEXT, 'T', "vfs_read")]);
    assert_eq!(shown(&table, TEXT).as_deref(), Some("vfs_read"));
    assert_eq!(shown(&table, TEXT + 5).as_deref(), Some("vfs_read+0x5"));
    assert_eq!(shown(&table, TEXT + 0x3f).as_deref(), Some("vfs_read+0x3f"));
    assert_eq!(shown(&table, TEXT + 0x40).as_deref(), Some("vfs_write"));
    assert_eq!(shown(&table, TEXT - 1), None);
    assert_eq!(
        shown(&table, TEXT + 0x41),
        None,
        "where the last symbol ends is not known"
    );
}

#[test]
fn sizes_stop_at_the_next_address_and_at_padding_symbols() {
    let table = table(&[
        (TEXT, 'T', "first"),
        (TEXT, 't', "alias"),
        (TEXT + 0x30, 't', "__pfx_second"),
        (TEXT + 0x40, 'T', "second"),
    ]);
    let size = |name: &str| table.lookup(name).map(|symbol| symbol.size);
    assert_eq!(size("first"), Some(0x30));
    assert_eq!(size("alias"), Some(0x30));
    assert_eq!(size("__pfx_second"), Some(0x10));
    assert_eq!(size("second"), Some(0));
    assert_eq!(
        table.lookup("first").and_then(|symbol| symbol.end()),
        Some(Gva(TEXT + 0x30))
    );
}

#[test]
fn most_readable_alias_is_shown_in_any_order() {
    let cases: [&[(char, &str)]; 5] = [
        &[('T', "ksys_read"), ('t', "a_local_one")],
        &[
            ('T', "__x64_sys_getpid"),
            ('T', "__ia32_sys_getpid"),
            ('t', "__do_sys_getpid"),
        ],
        &[
            ('T', "entry_SYSCALL_64"),
            ('T', "__entry_text_start"),
            ('T', "__start_entry"),
        ],
        &[
            ('t', "work"),
            ('T', "__pfx_work"),
            ('T', "__cfi_work"),
            ('T', ".text"),
        ],
        &[('T', "aaa"), ('T', "bbb")],
    ];
    for aliases in cases {
        let forward: Vec<_> = aliases
            .iter()
            .map(|&(kind, name)| (TEXT, kind, name))
            .collect();
        let backward: Vec<_> = forward.iter().rev().copied().collect();
        for symbols in [forward, backward] {
            assert_eq!(shown(&table(&symbols), TEXT).as_deref(), Some(aliases[0].1));
        }
    }
}

#[test]
fn shared_names_are_ordered_by_kind_and_address() {
    let table = table(&[
        (TEXT + 0x20, 't', "init"),
        (TEXT, 'd', "init"),
        (TEXT + 0x30, 'T', "init"),
        (TEXT + 0x10, 't', "init"),
        (TEXT + 0x40, 't', "initial"),
    ]);
    assert_eq!(table.address_of("init"), Some(Gva(TEXT + 0x30)));
    let all: Vec<u64> = table
        .lookup_all("init")
        .iter()
        .map(|symbol| symbol.address.0)
        .collect();
    assert_eq!(all, [TEXT + 0x30, TEXT + 0x10, TEXT + 0x20, TEXT]);
    assert!(table.lookup_all("ini").is_empty());
    assert_eq!(table.lookup("zzz"), None);
}

#[test]
fn patterns_match_in_address_order() {
    let table = table(&[
        (TEXT + 0x20, 'T', "vfs_read"),
        (TEXT, 'T', "vfs_write"),
        (TEXT + 0x10, 'T', "ksys_read"),
    ]);
    assert_eq!(names(table.matching("vfs_*")), ["vfs_write", "vfs_read"]);
    assert_eq!(names(table.matching("*_read")), ["ksys_read", "vfs_read"]);
    assert_eq!(names(table.iter()), ["vfs_write", "ksys_read", "vfs_read"]);
    assert_eq!(table.nearest_names("vfs_raed", 1), ["vfs_read"]);
}

#[test]
fn a_slide_moves_the_kernel_but_not_numbers_and_modules() {
    let mut builder = SymbolTableBuilder::new();
    builder.push(Gva(0x1c0), 'A', "current_task");
    builder.push(Gva(TEXT), 'T', "vfs_read");
    builder.push(Gva(TEXT + 0x40), 'T', "_etext");
    builder.push_module("nf_tables", Gva(0xffff_ffff_c000_1000), 't', "nft_hook");
    let moved = builder.build().rebased(0x4000_0000);
    assert_eq!(moved.address_of("current_task"), Some(Gva(0x1c0)));
    assert_eq!(moved.address_of("vfs_read"), Some(Gva(TEXT + 0x4000_0000)));
    let hook = moved
        .resolve(Gva(0xffff_ffff_c000_1000))
        .expect("the module stays");
    assert_eq!(hook.to_string(), "nft_hook [nf_tables]");
    assert_eq!(
        moved.rebased(-0x4000_0000).address_of("vfs_read"),
        Some(Gva(TEXT))
    );
}

#[test]
fn a_slide_across_a_module_keeps_the_table_in_order() {
    let mut builder = SymbolTableBuilder::new();
    builder.push(Gva(TEXT), 'T', "vfs_read");
    builder.push_module("m", Gva(TEXT + 0x1000), 't', "hook");
    let moved = builder.build().rebased(0x20_0000);
    assert_eq!(names(moved.iter()), ["hook", "vfs_read"]);
    assert_eq!(shown(&moved, TEXT + 0x20_0000).as_deref(), Some("vfs_read"));
    assert_eq!(moved.address_of("hook"), Some(Gva(TEXT + 0x1000)));
}

#[test]
fn per_cpu_offsets_are_not_places() {
    let table = table(&[
        (0, 'A', "__per_cpu_start"),
        (0x1000, 'A', "x"),
        (TEXT, 'T', "_text"),
    ]);
    assert_eq!(shown(&table, 0x10), None);
    assert_eq!(
        table.lookup("x").map(|symbol| symbol.size),
        Some(0),
        "the last of its half"
    );
}

#[test]
fn one_table_can_be_added_to() {
    let kernel = table(&[(TEXT, 'T', "vfs_read")]);
    let mut builder = SymbolTableBuilder::new();
    builder.extend(&kernel);
    builder.push_module("kvm", Gva(TEXT + 0x100), 't', "vcpu_run");
    let both = builder.build();
    assert_eq!(both.len(), 2);
    assert_eq!(
        both.lookup("vfs_read"),
        kernel.lookup("vfs_read").map(|symbol| super::Symbol {
            size: 0x100,
            ..symbol
        })
    );
    assert_eq!(
        both.lookup("vcpu_run").and_then(|symbol| symbol.module),
        Some(Arc::from("kvm"))
    );
}

#[test]
fn implausible_symbols_are_dropped() {
    let mut builder = SymbolTableBuilder::new();
    assert!(!builder.push(Gva(0), 'T', ""));
    assert!(!builder.push(Gva(0), 'é', "name"));
    assert!(!builder.push(Gva(0), 'T', &"x".repeat(5000)));
    assert!(builder.is_empty());
    assert_eq!(builder.build().resolve(Gva(0)), None);
}

proptest! {
    #[test]
    fn every_symbol_is_found_by_name_and_by_address(
        symbols in proptest::collection::vec((any::<u16>(), "[a-d_]{1,4}|__x64_sys_timer[_s]{0,3}", "[TtDd]"), 1..60),
    ) {
        let mut builder = SymbolTableBuilder::new();
        for (address, name, kind) in &symbols {
            let kind = kind.chars().next().expect("one letter");
            builder.push(Gva(TEXT + u64::from(*address)), kind, name);
        }
        let table = builder.build();
        prop_assert!(names(table.iter()).len() == symbols.len());
        for (address, name, _) in symbols {
            let address = Gva(TEXT + u64::from(address));
            let all = table.lookup_all(&name);
            prop_assert!(all.iter().any(|symbol| symbol.address == address));
            let place = table.resolve(address).expect("it has a symbol");
            prop_assert_eq!((place.symbol.address, place.offset), (address, 0));
        }
    }

    #[test]
    fn table_whose_stray_text_is_made_data_equals_a_table_built_of_data(
        symbols in proptest::collection::vec((any::<u16>(), "[a-c_]{1,2}", "[TtDd]"), 1..60),
        first_data in any::<u16>(),
    ) {
        let first_data = Gva(TEXT + u64::from(first_data));
        let (mut changed, mut built) = (SymbolTableBuilder::new(), SymbolTableBuilder::new());
        for (address, name, kind) in &symbols {
            let address = Gva(TEXT + u64::from(*address));
            let kind = kind.chars().next().expect("one letter");
            changed.push(address, kind, name);
            let data = if address < first_data { kind } else { kind.to_string().replace('T', "D").replace('t', "d").remove(0) };
            built.push(address, data, name);
        }
        let changed = changed.build().with_text_only_in(|address| address < first_data);
        let built = built.build();
        prop_assert!(changed.iter().eq(built.iter()));
        for (_, name, _) in &symbols {
            prop_assert_eq!(changed.lookup_all(name), built.lookup_all(name));
        }
    }
}
