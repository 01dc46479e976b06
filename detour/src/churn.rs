//! The growth of the region while probes are added and removed at many functions.

use std::collections::BTreeSet;
use std::ops::Range;

use address::{Gpa, Gva};
use introspect::PhysMemory as _;
use introspect::insn::decode;
use manifest::WhenFull;
use text::testing::{DETOUR_GPA, FakeMemory, FakePaused};

use super::made::{Keeps, Use};
use super::pages::{PageKind, Pages};
use super::place::{MAX_PAGES, REGION_BYTES};
use super::processor::{Processor, TaskFields};
use super::*;

/// A kernel whose image begins at the upper gigabyte's second page: the tables map only the image.
const ROOT: u64 = 0x1000;
const UPPER: u64 = 0x2000;
const DIRECTORY: u64 = 0x3000;
const IMAGE: Range<Gva> = Gva(0xffff_ffff_8020_0000)..Gva(0xffff_ffff_8220_0000);
const LARGE: u64 = 0xe3;

fn guest() -> (FakeMemory, KernelSpace) {
    let memory = FakeMemory::new(vec![0; 0x10_0000]);
    let table = 0x23_u64;
    for (at, entry) in [
        (ROOT + 8 * 511, UPPER | table),
        (UPPER + 8 * 510, DIRECTORY | table),
    ] {
        memory.put(at, &entry.to_le_bytes());
    }
    for index in 1..17 {
        memory.put(DIRECTORY + 8 * index, &LARGE.to_le_bytes());
    }
    let vcpu = text::testing::FakeVcpu::at(IMAGE.start, ROOT);
    let paging = vcpu.state.paging;
    (
        memory,
        KernelSpace {
            paging,
            image: IMAGE,
            tables: super::Tables::Settled,
        },
    )
}

fn usage(filter: Option<&str>, keeps: Keeps) -> Use {
    Use {
        filter: filter.map(|text| text.parse().expect("a filter")),
        keeps,
        when_full: WhenFull::Exit,
        processor: Processor {
            number: Some(0x1_fb80),
            task: Some(0x1_fbc0),
            fields: Some(TaskFields {
                numbers: 0x6e0,
                comm: 0x890,
                user: None,
            }),
        },
        plant: 0xee,
        index: 0,
    }
}

fn function(index: u64) -> Jumped {
    let nop = [0x0f, 0x1f, 0x44, 0, 0];
    let nop = decode(&nop, IMAGE.start.wrapping_add(64 * index)).expect("an instruction");
    Jumped::new(nop, None).expect("room")
}

struct Churned {
    memory: FakeMemory,
    paused: FakePaused,
    kernel: KernelSpace,
    detour: Detour,
}

impl Churned {
    fn new() -> Self {
        let (memory, kernel) = guest();
        let detour = Detour::default();
        let paused = FakePaused::default();
        Self {
            memory,
            paused,
            kernel,
            detour,
        }
    }

    fn make(&self, index: u64, usage: &Use) -> Result<MadeDetour, DetourError> {
        self.make_shared(index, std::slice::from_ref(usage))
    }

    fn make_shared(&self, index: u64, uses: &[Use]) -> Result<MadeDetour, DetourError> {
        let jumped = function(index);
        self.detour
            .make(&self.paused, &self.memory, &self.kernel, &jumped, uses)
    }

    /// The number of page-directory entries that map pages of each kind: code, and counters or the ring.
    fn pages(&self) -> (usize, usize) {
        let first_data = DETOUR_GPA + MAX_PAGES as u64 * REGION_BYTES;
        let entries = (0..512).map(|index| {
            let entry = self.memory.read_u64(Gpa(DIRECTORY + 8 * index));
            entry.expect("memory") & !(1 << 63) & !0xfff
        });
        let ours: Vec<_> = entries.filter(|gpa| *gpa >= DETOUR_GPA).collect();
        let code = ours.iter().filter(|gpa| **gpa < first_data).count();
        (code, ours.len() - code)
    }
}

/// The numbers of `docs/detours.md`: probes at 10 000 functions, one after the other, with each program in turn.
#[test]
fn ten_thousand_functions_take_the_memory_that_the_docs_say() {
    let hist = Keeps::Aggregate("hist(arg0)".parse().expect("an aggregate"));
    let programs = [
        ("counted", usage(None, Keeps::Count)),
        ("counted, filtered", usage(Some("arg0 == 1"), Keeps::Count)),
        ("recorded", usage(None, Keeps::Records)),
        ("followed", usage(None, Keeps::Calls)),
        ("histogram", usage(None, hist)),
    ];
    let mut told = Vec::new();
    for (name, usage) in &programs {
        let churned = Churned::new();
        let made: Vec<_> = (0..10_000)
            .map(|index| churned.make(index, usage).expect("there is room"))
            .collect();
        let entries: BTreeSet<_> = made.iter().map(|made| made.entry.0).collect();
        assert_eq!(entries.len(), made.len(), "each has a place of its own");
        let distance = made[1].entry.0 - made[0].entry.0;
        told.push((*name, distance, churned.pages()));
        // The same probes again need no memory.
        for index in (0..10_000).step_by(7) {
            let again = churned.make(index, usage).expect("it is there");
            let before = &made[usize::try_from(index).expect("small")];
            assert_eq!(
                (again.entry, again.parts[0].part_number),
                (before.entry, before.parts[0].part_number)
            );
        }
        assert_eq!(churned.pages(), told.last().expect("told").2);
    }
    assert_eq!(
        told,
        [
            ("counted", 32, (1, 1)),
            ("counted, filtered", 48, (1, 1)),
            ("recorded", 272, (2, 1)),
            ("followed", 320, (2, 1)),
            ("histogram", 64, (1, 3)),
        ]
    );
}

/// A shared detour has the same parts as single detours; each set of probes has one detour, however often the sets change.
#[test]
fn shared_detours_have_the_parts_of_their_site() {
    let churned = Churned::new();
    let [count, record, call] =
        [Keeps::Count, Keeps::Records, Keeps::Calls].map(|it| usage(None, it));
    let alone: Vec<_> = [&count, &record, &call]
        .map(|usage| churned.make(0, usage).expect("there is room"))
        .into();
    let sets = [
        vec![count.clone(), record.clone(), call.clone()],
        vec![count.clone(), record.clone()],
        vec![record.clone(), count.clone()],
        vec![
            Use {
                index: 1,
                ..count.clone()
            },
            count.clone(),
        ],
    ];
    let make = |set: &Vec<Use>| churned.make_shared(0, set).expect("there is room");
    let made: Vec<_> = sets.iter().map(make).collect();
    let entries: BTreeSet<_> = alone.iter().chain(&made).map(|made| made.entry).collect();
    assert_eq!(entries.len(), alone.len() + made.len());
    let part_numbers = |made: &MadeDetour| {
        made.parts
            .iter()
            .map(|part| part.part_number)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        made.iter().map(part_numbers).collect::<Vec<_>>(),
        [vec![1, 2, 3], vec![1, 2], vec![2, 1], vec![4, 1]]
    );
    let words = |made: &MadeDetour| made.parts[0].words.clone();
    assert_eq!(words(&made[0]), words(&alone[0]));
    assert_ne!(words(&made[3]), words(&alone[0]));
    for (set, made) in sets.iter().zip(&made) {
        assert_eq!(make(set).entry, made.entry);
    }
}

/// A detour on a second page is whole and mapped, and the region knows the exit.
#[test]
fn code_does_not_cross_the_end_of_a_page() {
    let churned = Churned::new();
    let record = usage(None, Keeps::Records);
    let mut bases = BTreeSet::new();
    for index in 0..10_000 {
        let made = churned.make(index, &record).expect("there is room");
        let end = made.entry.0 + 271;
        assert_eq!(made.entry.0 / REGION_BYTES, end / REGION_BYTES);
        bases.insert(made.entry.0 / REGION_BYTES);
        let exits = (made.entry.0..end).filter_map(|at| churned.detour.left_at(Gva(at)));
        assert_eq!(
            exits.map(|left| left.part_number).collect::<Vec<_>>(),
            [made.parts[0].part_number]
        );
    }
    assert_eq!(bases.len(), 2);
}

/// The number of pages is bounded, and no page is mapped if every directory entry is taken.
#[test]
fn pages_are_bounded() {
    let (memory, kernel) = guest();
    let paused = FakePaused::default();
    let mut pages = Pages::new(&paused, &memory, &kernel).expect("memory");
    let mut seen = BTreeSet::new();
    for kind in [PageKind::Code, PageKind::Data] {
        for _ in 0..MAX_PAGES {
            let page = pages.map(&memory, kind, &[1]).expect("there is room");
            assert!(seen.insert(page.base) && seen.insert(Gva(page.gpa.0)));
            assert!(pages.is_reached(&memory, &kernel.paging, page.base));
            let is_code = kind == PageKind::Code;
            assert_eq!(pages.is_read_only(page.gpa), is_code);
        }
        let full = pages.map(&memory, kind, &[]);
        assert!(matches!(full, Err(DetourError::Full)), "{full:?}");
    }
    pages.unmap(&memory).expect("memory");
    let entries =
        (0..512).map(|index| memory.read_u64(Gpa(DIRECTORY + 8 * index)).expect("memory"));
    assert_eq!(
        entries.filter(|entry| *entry != 0).count(),
        16,
        "the image's"
    );

    let mut pages = Pages::new(&paused, &memory, &kernel).expect("memory");
    pages
        .map(&memory, PageKind::Code, &[])
        .expect("one is free");
    for index in 0..512 {
        let at = DIRECTORY + 8 * index;
        if memory.read_u64(Gpa(at)).expect("memory") == 0 {
            memory.put(at, &1u64.to_le_bytes());
        }
    }
    let refused = pages.map(&memory, PageKind::Data, &[]);
    assert!(matches!(refused, Err(DetourError::NoPlace)), "{refused:?}");
    assert_eq!(pages.changed_entry(&memory), None);
}
