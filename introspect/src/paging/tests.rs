use std::collections::BTreeMap;

use address::{Gpa, Gva};
use proptest::prelude::*;

use super::{
    EntryAt, Level, PageSize, PagingState, VirtReadError, WalkFault, entry_at, read_virt, walk,
};
use crate::{FlatMemory, PhysMemory, Unreadable};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NX: u64 = 1 << 63;
const OPEN: u64 = PRESENT | WRITABLE | USER | ACCESSED;

/// Page tables in flat memory, allocated from the bottom; the root is the first page.
struct Tables {
    memory: FlatMemory,
    next: u64,
    levels: u32,
}

impl Tables {
    fn new(levels: u32) -> Self {
        Self {
            memory: FlatMemory::zeroed(1 << 20),
            next: 0x1000,
            levels,
        }
    }

    fn state(&self) -> PagingState {
        // A PCID in the low bits must not matter.
        if self.levels == 5 {
            PagingState::five_level(7)
        } else {
            PagingState::four_level(7)
        }
    }

    /// Maps a page with `flags` in the leaf and `above` in the entries above.
    fn map(&mut self, gva: Gva, gpa: Gpa, size: PageSize, flags: u64, above: u64) {
        let (depth, large) = match size {
            PageSize::Size4K => (1, 0),
            PageSize::Size2M => (2, LARGE),
            PageSize::Size1G => (3, LARGE),
        };
        let mut table = 0;
        for level in (depth..=self.levels).rev() {
            let slot = Gpa(table + ((gva.0 >> (12 + 9 * (level - 1))) & 0x1ff) * 8);
            let entry = self.memory.read_u64(slot).expect("a table");
            if level == depth {
                self.set(slot, gpa.0 | flags | large);
            } else if entry & PRESENT == 0 {
                self.set(slot, self.next | above);
                table = self.next;
                self.next += 0x1000;
            } else {
                table = entry & 0x000f_ffff_ffff_f000;
            }
        }
    }

    fn set(&mut self, slot: Gpa, entry: u64) {
        self.memory
            .write(slot, &entry.to_le_bytes())
            .expect("room for the table");
    }

    fn walk(&self, gva: Gva) -> Result<super::Translation, WalkFault> {
        walk(&self.memory, &self.state(), gva)
    }
}

fn sizes() -> impl Strategy<Value = PageSize> {
    prop_oneof![
        Just(PageSize::Size4K),
        Just(PageSize::Size2M),
        Just(PageSize::Size1G)
    ]
}

/// Sign-extends, so that any number becomes a translatable address.
fn canonical(number: u64, levels: u32) -> u64 {
    let unused = 64 - (12 + 9 * levels);
    ((number << unused).cast_signed() >> unused).cast_unsigned()
}

proptest! {
    #[test]
    fn walks_return_the_mapped_pages(
        levels in 4_u32..=5,
        pages in proptest::collection::vec((any::<u64>(), 0..1_u64 << 40, sizes(), any::<[bool; 5]>()), 1..20),
        offset in any::<u64>(),
    ) {
        let mut tables = Tables::new(levels);
        let mut mapped = BTreeMap::new();
        for (number, gpa, size, [writable, user, no_execute, dirty, global]) in pages {
            let mask = size.bytes() - 1;
            let gva = canonical(number, levels) & !mask;
            // Two pages in one gigabyte might need the same entry for a table and for a page.
            if mapped.contains_key(&(gva >> 30)) {
                continue;
            }
            let flag = |on: bool, bit: u64| if on { bit } else { 0 };
            let flags = PRESENT | ACCESSED | flag(writable, WRITABLE) | flag(user, USER)
                | flag(no_execute, NX) | flag(dirty, DIRTY) | flag(global, GLOBAL);
            tables.map(Gva(gva), Gpa(gpa & !mask), size, flags, OPEN);
            mapped.insert(gva >> 30, (gva, gpa & !mask, size, flags));
        }
        for (gva, gpa, size, flags) in mapped.into_values() {
            let offset = offset & (size.bytes() - 1);
            let found = tables.walk(Gva(gva + offset)).expect("mapped");
            prop_assert_eq!(found.gpa, Gpa(gpa + offset));
            prop_assert_eq!(found.page_size, size);
            prop_assert_eq!(found.bytes_left_in_page(), size.bytes() - offset);
            prop_assert_eq!(found.writable, flags & WRITABLE != 0);
            prop_assert_eq!(found.user, flags & USER != 0);
            prop_assert_eq!(found.executable, flags & NX == 0);
            prop_assert_eq!(found.dirty, flags & DIRTY != 0);
            prop_assert_eq!(found.global, flags & GLOBAL != 0);
            prop_assert!(found.accessed);
            let (first, at) = (Gva(gva), Gva(gva + offset));
            let moved = tables.walk(first).expect("mapped").moved(first, at);
            prop_assert_eq!(moved, Some(found));
            prop_assert_eq!(found.moved(at, Gva(gva.wrapping_add(size.bytes()))), None);
            prop_assert_eq!(found.moved(at, Gva(gva.wrapping_sub(1))), None);
        }
    }

    #[test]
    fn no_tables_break_the_walk(
        bytes in proptest::collection::vec(any::<u8>(), 0x3000),
        cr3 in any::<u64>(), cr4 in any::<u64>(), efer in any::<u64>(), gva in any::<u64>(),
    ) {
        let memory = FlatMemory::new(Gpa(0), bytes);
        let state = PagingState { cr0: 1 << 31, cr3: cr3 & 0x3fff, cr4, efer };
        let _ = walk(&memory, &state, Gva(gva));
        let _ = read_virt(&memory, &state, Gva(gva), &mut [0; 5000]);
    }
}

#[test]
fn any_level_can_take_a_permission_away() {
    let gva = Gva(0xffff_8000_0040_0000);
    for level in 1..=4 {
        let mut tables = Tables::new(4);
        tables.map(gva, Gpa(0x5000), PageSize::Size4K, OPEN | DIRTY, OPEN);
        let mut table = 0;
        for above in (level..=4).rev() {
            let slot = Gpa(table + ((gva.0 >> (12 + 9 * (above - 1))) & 0x1ff) * 8);
            let entry = tables.memory.read_u64(slot).expect("a table");
            if above == level {
                tables.set(slot, entry & !(WRITABLE | USER | ACCESSED) | NX);
            }
            table = entry & 0x000f_ffff_ffff_f000;
        }
        let found = tables.walk(gva).expect("still mapped");
        let open = found.writable || found.user || found.executable || found.accessed;
        assert!(!open, "level {level}: {found:?}");
    }
}

#[test]
fn faults_name_the_level() {
    let gva = Gva(0x7f00_1234_5000);
    let mut tables = Tables::new(4);
    assert_eq!(
        tables.walk(gva),
        Err(WalkFault::NotPresent {
            gva,
            level: Level::Pml4
        })
    );
    tables.map(
        Gva(gva.0 + 0x1000),
        Gpa(0x9000),
        PageSize::Size4K,
        OPEN,
        OPEN,
    );
    assert_eq!(
        tables.walk(gva),
        Err(WalkFault::NotPresent {
            gva,
            level: Level::Pt
        })
    );

    let entry = 0x10_0000_0000 | OPEN;
    tables.set(Gpa(((gva.0 >> 39) & 0x1ff) * 8), entry);
    let source = Unreadable {
        gpa: Gpa(0x10_0000_0000 + ((gva.0 >> 30) & 0x1ff) * 8),
        len: 8,
    };
    assert_eq!(
        tables.walk(gva),
        Err(WalkFault::Unreadable {
            gva,
            level: Level::Pdpt,
            source
        })
    );
}

#[test]
fn reserved_bits_fault() {
    let gva = Gva(0x4000_0000);
    let cases = [
        (PageSize::Size2M, Gpa(0x20_0000), 1 << 13, Level::Pd),
        (PageSize::Size2M, Gpa(0x20_0000), 1 << 20, Level::Pd),
        (PageSize::Size1G, Gpa(0x4000_0000), 1 << 29, Level::Pdpt),
    ];
    for (size, gpa, bit, level) in cases {
        let mut tables = Tables::new(4);
        tables.map(gva, gpa, size, OPEN | bit, OPEN);
        let fault = tables.walk(gva).expect_err("a reserved bit is set");
        assert!(matches!(fault, WalkFault::Reserved { level: found, .. } if found == level));
    }

    // Bit 12 of a large page is PAT, and NX is reserved only while it is switched off.
    let mut tables = Tables::new(4);
    tables.map(
        gva,
        Gpa(0x20_0000),
        PageSize::Size2M,
        OPEN | NX | 1 << 12,
        OPEN,
    );
    assert_eq!(tables.walk(gva).map(|found| found.gpa), Ok(Gpa(0x20_0000)));
    let without_nx = PagingState {
        efer: 1 << 10,
        ..tables.state()
    };
    let fault = walk(&tables.memory, &without_nx, gva).expect_err("NX is off");
    assert!(matches!(
        fault,
        WalkFault::Reserved {
            level: Level::Pd,
            ..
        }
    ));
}

#[test]
fn addresses_outside_the_levels_are_refused() {
    let tables = Tables::new(4);
    for gva in [
        Gva(0x0000_8000_0000_0000),
        Gva(0xffff_7fff_ffff_ffff),
        Gva(1 << 63),
    ] {
        assert_eq!(tables.walk(gva), Err(WalkFault::NonCanonical { gva }));
    }
    let gva = Gva(0x0000_8000_0000_0000);
    let level = Level::Pml5;
    assert_eq!(
        Tables::new(5).walk(gva),
        Err(WalkFault::NotPresent { gva, level })
    );
    let gva = Gva(0x0100_0000_0000_0000);
    assert_eq!(
        Tables::new(5).walk(gva),
        Err(WalkFault::NonCanonical { gva })
    );
}

#[test]
fn without_paging_addresses_are_physical() {
    let memory = FlatMemory::zeroed(0);
    let off = PagingState {
        cr0: 1,
        ..PagingState::default()
    };
    assert_eq!(
        walk(&memory, &off, Gva(0xffff_fff0)).map(|found| found.gpa),
        Ok(Gpa(0xffff_fff0))
    );
    let gva = Gva(1 << 32);
    assert_eq!(
        walk(&memory, &off, gva),
        Err(WalkFault::NonCanonical { gva })
    );
    let legacy = PagingState {
        cr0: 1 | 1 << 31,
        ..PagingState::default()
    };
    assert_eq!(
        walk(&memory, &legacy, gva),
        Err(WalkFault::LegacyTables { gva })
    );
}

#[test]
fn reads_cross_pages_that_lie_apart() {
    let mut tables = Tables::new(4);
    tables.map(Gva(0x1000), Gpa(0x8_0000), PageSize::Size4K, OPEN, OPEN);
    tables.map(Gva(0x2000), Gpa(0x7_0000), PageSize::Size4K, OPEN, OPEN);
    tables.memory.write(Gpa(0x8_0ffe), b"ab").expect("room");
    tables.memory.write(Gpa(0x7_0000), b"cd").expect("room");
    let mut text = [0; 4];
    read_virt(&tables.memory, &tables.state(), Gva(0x1ffe), &mut text).expect("both mapped");
    assert_eq!(&text, b"abcd");

    let gva = Gva(0x3000);
    let fault = VirtReadError::Walk(WalkFault::NotPresent {
        gva,
        level: Level::Pt,
    });
    let mut rest = [0; 3];
    assert_eq!(
        read_virt(&tables.memory, &tables.state(), Gva(0x2ffe), &mut rest),
        Err(fault)
    );
}

#[test]
fn a_read_past_the_end_of_the_address_space_is_refused() {
    let mut tables = Tables::new(4);
    let last = Gva(0xffff_ffff_ffff_f000);
    tables.map(last, Gpa(0x8_0000), PageSize::Size4K, OPEN, OPEN);
    let state = tables.state();
    read_virt(&tables.memory, &state, last, &mut [0; 4096]).expect("the last page");
    let error = VirtReadError::Wraps {
        gva: last,
        len: 4097,
    };
    assert_eq!(
        read_virt(&tables.memory, &state, last, &mut [0; 4097]),
        Err(error)
    );
}

#[test]
fn an_entry_is_found_present_or_not() {
    for levels in [4, 5] {
        let mut tables = Tables::new(levels);
        let (gva, large) = (Gva(0xffff_ffff_8100_3000), Gva(0xffff_ffff_8120_0000));
        tables.map(gva, Gpa(0x7000), PageSize::Size4K, OPEN, OPEN);
        tables.map(large, Gpa(0x20_0000), PageSize::Size2M, OPEN, OPEN);
        let (memory, state) = (&tables.memory, tables.state());
        let found = |gva, level| entry_at(memory, &state, gva, level);
        let leaf = found(gva, Level::Pt).expect("a table");
        assert_eq!(leaf.value, 0x7000 | OPEN);
        assert_eq!(memory.read_u64(leaf.gpa), Ok(leaf.value));
        let directory = found(gva, Level::Pd).expect("a directory");
        let empty = found(Gva(0xffff_ffff_8140_0000), Level::Pd).expect("the same directory");
        let expected = EntryAt {
            gpa: directory.gpa.wrapping_add(2 * 8),
            value: 0,
        };
        assert_eq!(empty, expected);
        let level = Level::Pd;
        assert_eq!(
            found(large, Level::Pt),
            Err(WalkFault::NotPresent { gva: large, level })
        );
        let (gva, level) = (Gva(0x1000), levels_top(levels));
        assert_eq!(
            found(gva, Level::Pd),
            Err(WalkFault::NotPresent { gva, level })
        );
    }
}

fn levels_top(levels: u32) -> Level {
    if levels == 5 {
        Level::Pml5
    } else {
        Level::Pml4
    }
}
