use address::{Gpa, Gva};
use proptest::prelude::*;

use super::{
    KallsymsError,
    budget::Budget,
    from_elf, from_guest, names,
    synthetic::{Entry, LAYOUTS, Layout, TEXT, kernel, symbols},
    tables, tokens,
    view::View,
};
use crate::{FlatMemory, SymbolTable};

/// The address of the synthetic kernel's read-only data.
const RODATA: Gva = Gva(0xffff_ffff_8240_0000);

fn parse(bytes: &[u8], base: Gva) -> Option<SymbolTable> {
    tables::parse(&[View { bytes, base }])
}

#[test]
fn every_layout_is_read_back() {
    for layout in LAYOUTS {
        // One more and one less than a marker's worth, and neither.
        for count in [491, 490, 700, 1001] {
            let written = symbols(layout, count);
            let bytes = kernel(layout, RODATA, TEXT, &written);
            let table = parse(&bytes, RODATA);
            let table = table.unwrap_or_else(|| panic!("{layout:?} with {count} functions"));
            assert_eq!(table.len(), written.len(), "{layout:?}");
            for (address, kind, name) in written {
                let found = table.lookup(&name);
                let found = found.unwrap_or_else(|| panic!("{layout:?} has no {name}"));
                assert_eq!(
                    (found.address, found.kind),
                    (Gva(address), kind),
                    "{layout:?} {name}"
                );
            }
        }
    }
}

#[test]
fn guest_memory_gives_run_time_addresses() {
    let slide = 0x1240_0000;
    for layout in LAYOUTS {
        let moved: Vec<Entry> = symbols(layout, 600)
            .into_iter()
            .map(|(address, kind, name)| {
                (
                    if address >> 63 == 0 {
                        address
                    } else {
                        address + slide
                    },
                    kind,
                    name,
                )
            })
            .collect();
        let base = RODATA.wrapping_add(slide);
        let bytes = kernel(layout, base, TEXT + slide, &moved);
        let len = bytes.len() as u64;
        let memory = FlatMemory::new(Gpa(0x240_0000), bytes);
        // The unreadable rest behind the last page does not matter.
        let range = Gpa(0x240_0000)..Gpa(0x240_0000 + len.next_multiple_of(1 << 20));
        let table = from_guest(&memory, range, base).expect("the tables are there");
        assert_eq!(
            table.address_of("_text"),
            Some(Gva(TEXT + slide)),
            "{layout:?}"
        );
    }
}

#[test]
fn the_bigger_of_two_tables_is_taken() {
    let mut bytes = kernel(
        Layout::OffsetsFirst,
        RODATA,
        TEXT,
        &symbols(Layout::OffsetsFirst, 520),
    );
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let base = RODATA.wrapping_add(bytes.len() as u64);
    bytes.extend(kernel(
        Layout::OffsetsLast,
        base,
        TEXT,
        &symbols(Layout::OffsetsLast, 900),
    ));
    let table = parse(&bytes, RODATA).expect("two tables");
    assert_eq!(table.len(), 922);
}

/// Symbols with labels that place the read-only data at `rodata`.
fn with_rodata(count: u64, rodata: std::ops::Range<u64>) -> Vec<Entry> {
    let mut written = symbols(Layout::OffsetsLast, count);
    written.push((rodata.start, 'R', "__start_rodata".to_owned()));
    written.push((rodata.end, 'R', "__end_rodata".to_owned()));
    written
}

#[test]
fn larger_table_behind_the_read_only_data_does_not_replace_the_kernels_own() {
    const RODATA_BYTES: usize = 1 << 20;
    let own_rodata = RODATA.0..RODATA.0 + RODATA_BYTES as u64;
    let own = with_rodata(520, own_rodata.clone());
    let mut bytes = kernel(Layout::OffsetsLast, RODATA, TEXT, &own);
    bytes.resize(RODATA_BYTES, 0);
    let behind = RODATA.wrapping_add(bytes.len() as u64);
    // The labels of the forged table name the own read-only data, or the memory around the forged table.
    for rodata in [own_rodata, behind.0..behind.0 + RODATA_BYTES as u64] {
        let forged = with_rodata(900, rodata);
        let mut bytes = bytes.clone();
        bytes.extend(kernel(Layout::OffsetsLast, behind, TEXT, &forged));
        let table = parse(&bytes, RODATA).expect("two tables");
        assert_eq!(table.len(), own.len());
    }
}

#[test]
fn tables_without_the_labels_of_a_kernel_are_refused() {
    let mut written = symbols(Layout::OffsetsLast, 600);
    written.retain(|(.., name)| !name.contains("text"));
    assert!(parse(&kernel(Layout::OffsetsLast, RODATA, TEXT, &written), RODATA).is_none());
}

#[test]
fn text_outside_the_text_is_data() {
    let mut written = symbols(Layout::SelfRelative, 600);
    let end = TEXT + 0x10_0000;
    written.push((end, 'T', "_etext".to_owned()));
    written.push((end + 0x1000, 't', "a_variable".to_owned()));
    written.push((end + 0x1010, 'T', "jiffies".to_owned()));
    let table = parse(
        &kernel(Layout::SelfRelative, RODATA, TEXT, &written),
        RODATA,
    );
    let table = table.expect("the tables are there");
    let kind = |name: &str| table.lookup(name).map(|symbol| symbol.kind);
    assert_eq!(
        (kind("a_variable"), kind("jiffies")),
        (Some('d'), Some('D'))
    );
    assert_eq!((kind("_text"), kind("vfs_read_0")), (Some('T'), Some('t')));
}

#[test]
fn ranges_that_hold_no_kernel_are_refused() {
    let memory = FlatMemory::zeroed(4096);
    for end in [0, 1 << 40] {
        let error =
            from_guest(&memory, Gpa(0)..Gpa(end), RODATA).expect_err("no kernel is that big");
        assert!(matches!(error, KallsymsError::Range { .. }));
    }
    let error = from_guest(&memory, Gpa(0)..Gpa(4096), RODATA).expect_err("nothing but zeroes");
    assert!(matches!(error, KallsymsError::NotFound));
    assert!(matches!(from_elf(b"\x7fELF"), Err(KallsymsError::Image(_))));
}

/// The test executable is an ELF file with a symbol table.
#[test]
fn an_elf_symbol_table_goes_first() {
    let path = std::env::current_exe().expect("a running test");
    let table = from_elf(&std::fs::read(path).expect("a file")).expect("symbols");
    let main = table.lookup("main").expect("every program has it");
    assert_eq!(main.kind, 'T');
    assert!(
        table
            .resolve(main.address)
            .is_some_and(|place| place.offset == 0)
    );
    assert!(
        table
            .iter()
            .any(|symbol| symbol.kind == 'd' || symbol.kind == 'b')
    );
    assert!(table.matching(".L*").next().is_none());
}

/// Names of two bytes each make every place look like the beginning of the names.
#[test]
fn tables_made_to_waste_time_are_given_up() {
    let written = symbols(Layout::OffsetsLast, 600);
    let bytes = kernel(Layout::OffsetsLast, RODATA, TEXT, &written);
    let digits = bytes
        .windows(4)
        .position(|window| window == b"0\x001\x00")
        .expect("the tokens");
    let tokens = bytes[..digits]
        .windows(8)
        .rposition(|window| window == b"unused0\0");
    let tail = &bytes[tokens.expect("the first token")..];
    let count = 0x0001_0001_usize;
    let mut hostile = [1, 0].repeat(count + 200_001);
    for marker in (0..count).step_by(256) {
        hostile.extend(u32::try_from(marker * 2).expect("small").to_le_bytes());
    }
    hostile.resize(hostile.len().next_multiple_of(8), 0);
    let with_tail: Vec<u8> = hostile.iter().chain(tail).copied().collect();
    let view = View {
        bytes: &with_tail,
        base: RODATA,
    };
    let tokens = tokens::find(&view);
    let mut budget = Budget::new();
    assert_eq!(
        names::find(
            &view,
            tokens.first().expect("the tokens are whole"),
            &mut budget
        ),
        None
    );
    assert_eq!(budget.step(), None, "as long as it was allowed to");
}

#[test]
fn zeros_before_the_tokens_cost_steps() {
    let mut bytes = vec![0; 1 << 20];
    bytes.extend(kernel(
        Layout::OffsetsLast,
        RODATA,
        TEXT,
        &symbols(Layout::OffsetsLast, 600),
    ));
    let start = tokens::find(&View {
        bytes: &bytes,
        base: RODATA,
    });
    let start = start.first().expect("the tokens are whole").start;
    bytes[..start].fill(0);
    let view = View {
        bytes: &bytes,
        base: RODATA,
    };
    let mut budget = Budget::new();
    let tokens = tokens::find(&view);
    let tokens = tokens.first().expect("the tokens are whole");
    assert_eq!(names::find(&view, tokens, &mut budget), None);
    assert_eq!(budget.step(), None, "each zero looks like a marker");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_tables_break_nothing(
        layout in proptest::sample::select(&LAYOUTS[..]),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = kernel(layout, RODATA, TEXT, &symbols(layout, 600));
        for (place, value) in damage {
            let at = place.index(bytes.len());
            bytes[at] = value;
        }
        let _ = parse(&bytes, RODATA);
        let cut = cut.index(bytes.len());
        let _ = parse(&bytes[..cut], RODATA);
        let _ = parse(&bytes[cut..], Gva(u64::MAX - 100));
    }

    #[test]
    fn random_bytes_are_no_tables(bytes in proptest::collection::vec(any::<u8>(), 0..20_000)) {
        prop_assert!(parse(&bytes, RODATA).is_none());
        prop_assert!(from_elf(&bytes).is_err());
    }
}
