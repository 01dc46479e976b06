use std::sync::Arc;

use address::Gpa;
use proptest::prelude::*;

use super::{Jump, PlantByte, Planter, Spot, Written};
use crate::guest::GuestMemory;
use crate::testing::{FakeMemory, FakePaused};

const PAGES: usize = 4;
const PORT: u8 = PlantByte::Port.value();
const INT3: u8 = PlantByte::Int3.value();

/// Bytes without equal neighbours, and without a byte equal to a plant.
fn original() -> Vec<u8> {
    (0..PAGES * 4096)
        .map(|i| u8::try_from(i % 191).expect("small"))
        .collect()
}

struct Rig {
    memory: Arc<FakeMemory>,
    paused: FakePaused,
    planter: Planter,
}

impl Rig {
    fn new(byte: PlantByte) -> Self {
        let memory = Arc::new(FakeMemory::new(original()));
        let paused = FakePaused::beside(&memory);
        let planter = Planter::new(Arc::clone(&memory) as Arc<dyn GuestMemory>, byte);
        Self {
            memory,
            paused,
            planter,
        }
    }

    fn change(&self, add: &[(u64, usize)], remove: &[u64]) -> bool {
        let add: Vec<_> = add
            .iter()
            .map(|(gpa, len)| (Spot::contiguous(Gpa(*gpa)), *len))
            .collect();
        let remove: Vec<_> = remove.iter().map(|gpa| Gpa(*gpa)).collect();
        self.planter.change(&self.paused, &add, &remove).is_ok()
    }

    fn write(&self, gpa: u64, data: &[u8]) -> Written {
        self.planter.guest_write(Gpa(gpa), data).expect("memory")
    }

    /// The memory visible to the guest, from `gpa` on.
    fn seen<const N: usize>(&self, gpa: usize) -> [u8; N] {
        self.memory.bytes()[gpa..gpa + N]
            .try_into()
            .expect("N bytes")
    }

    fn own<const N: usize>(&self, gpa: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.planter.read_own(Gpa(gpa), &mut bytes).expect("memory");
        bytes
    }

    fn all_own(&self) -> Vec<u8> {
        let mut bytes = vec![0; PAGES * 4096];
        self.planter.read_own(Gpa(0), &mut bytes).expect("memory");
        bytes
    }
}

#[test]
fn a_plant_shows_and_its_own_byte_is_kept() {
    for byte in [PlantByte::Port, PlantByte::Int3] {
        let rig = Rig::new(byte);
        assert!(rig.change(&[(0x10, 1), (0x1234, 3)], &[]));
        let mut expected = original();
        (expected[0x10], expected[0x1234]) = (byte.value(), byte.value());
        assert_eq!(rig.memory.bytes(), expected);
        assert_eq!(rig.all_own(), original());
        assert_eq!(
            rig.paused.read_only(),
            [(0, 0x2000)],
            "neighbours are one range"
        );
        assert!(rig.change(&[], &[0x10]));
        assert_eq!(rig.paused.read_only(), [(0x1000, 0x2000)]);
        assert!(rig.change(&[], &[0x1234]));
        assert_eq!(rig.memory.bytes(), original());
        assert_eq!(rig.paused.read_only(), []);
    }
}

#[test]
fn both_pages_of_an_instruction_are_watched() {
    let rig = Rig::new(PlantByte::Port);
    assert!(rig.change(&[(0x1ffe, 2)], &[]));
    assert_eq!(rig.paused.read_only(), [(0x1000, 0x2000)]);
    assert!(rig.change(&[(0x1ffe, 3)], &[]));
    assert_eq!(rig.paused.read_only(), [(0x1000, 0x3000)]);
    assert_eq!(
        rig.write(0x2000, &[1]),
        Written::Merged,
        "its tail is on the second page"
    );
}

/// The spot lies in a module, whose pages may lie anywhere.
#[test]
fn the_page_beyond_is_the_one_that_follows_for_the_guest() {
    let rig = Rig::new(PlantByte::Port);
    let spot = Spot {
        gpa: Gpa(0x1ffe),
        beyond: Some(Gpa(0x3000)),
    };
    let change = |len| rig.planter.change(&rig.paused, &[(spot, len)], &[]);
    change(2).expect("it ends on its page");
    assert_eq!(rig.paused.read_only(), [(0x1000, 0x2000)]);
    change(3).expect("it goes on beyond");
    assert_eq!(rig.paused.read_only(), [(0x1000, 0x2000), (0x3000, 0x4000)]);
}

/// Whichever request fails, nothing has changed. If no request fails, the whole change is made.
#[test]
fn a_change_is_made_whole_or_not_at_all() {
    let rig = Rig::new(PlantByte::Port);
    assert!(rig.change(&[(0x20, 1), (0x1020, 1), (0x1030, 2)], &[]));
    rig.write(0x1031, &[7]);
    let (seen, own, read_only) = (rig.memory.bytes(), rig.all_own(), rig.paused.read_only());
    let mut failures = 0;
    loop {
        rig.paused.requests.fail(failures + 1);
        let changed = rig.change(&[(0x40, 1), (0x2000, 1), (0x3fff, 1)], &[0x1020, 0x20]);
        rig.paused.requests.fail(0);
        if changed {
            break;
        }
        failures += 1;
        assert_eq!(rig.memory.bytes(), seen, "request {failures}");
        assert_eq!(rig.all_own(), own);
        assert_eq!(rig.paused.read_only(), read_only);
        // The plants are still in place: a write is merged with them.
        rig.write(0x20, &original()[0x20..0x22]);
        assert_eq!(rig.memory.bytes(), seen);
    }
    assert_eq!(
        failures, 6,
        "the slots, two bytes taken away, three planted"
    );
    assert_eq!(rig.all_own(), own);
    assert_eq!(rig.paused.read_only(), [(0, 0x4000)]);
    assert_eq!(rig.seen::<1>(0x20), [own[0x20]]);
    assert_eq!(rig.seen::<1>(0x3fff), [PORT]);
}

#[test]
fn address_outside_memory_cannot_be_planted() {
    let rig = Rig::new(PlantByte::Port);
    let end = (PAGES * 4096) as u64;
    assert!(!rig.change(&[(0x10, 1), (end, 1)], &[]));
    assert!(
        !rig.change(&[(end - 1, 2)], &[]),
        "its second byte is on no page"
    );
    assert_eq!(rig.memory.bytes(), original());
    assert_eq!(rig.paused.read_only(), []);
    assert_eq!(rig.write(0x10, &[1]), Written::NotOurs);
}

#[test]
fn a_guest_write_of_any_width_goes_under_the_plants() {
    let data = [0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7];
    for len in 1..=8 {
        for plant in 0x800..0x800 + len {
            let rig = Rig::new(PlantByte::Port);
            assert!(rig.change(&[(plant as u64, 1)], &[]));
            assert_eq!(rig.write(0x800, &data[..len]), Written::Merged);
            let mut own = original();
            own[0x800..0x800 + len].copy_from_slice(&data[..len]);
            assert_eq!(rig.all_own(), own);
            own[plant] = PORT;
            assert_eq!(rig.memory.bytes(), own, "{len} bytes over {plant:#x}");
        }
    }
}

#[test]
fn a_guest_write_may_cross_the_end_of_a_page() {
    let data = [1, 2, 3, 4, 5, 6, 7, 8];
    for split in 1..8 {
        let rig = Rig::new(PlantByte::Port);
        assert!(rig.change(&[(0xfff, 1)], &[]));
        let at = 0x1000 - split;
        assert_eq!(rig.write(at as u64, &data), Written::Merged);
        let mut expected = original();
        expected[at..at + 8].copy_from_slice(&data);
        assert_eq!(rig.all_own(), expected);
        expected[0xfff] = PORT;
        assert_eq!(rig.memory.bytes(), expected);
    }
}

#[test]
fn a_page_without_plants_is_nobodys() {
    let rig = Rig::new(PlantByte::Port);
    assert!(rig.change(&[(0x1000, 1)], &[]));
    assert_eq!(rig.write(0x2000, &[1, 2]), Written::NotOurs);
    assert_eq!(rig.seen::<2>(0x2000), original()[0x2000..0x2002]);
    assert!(rig.planter.pages().keeps(Gpa(0x1fff)) && !rig.planter.pages().keeps(Gpa(0x2000)));
}

/// A guest that copies code reads the plant's byte and stores the byte back.
#[test]
fn the_plants_byte_stored_back_changes_nothing() {
    let rig = Rig::new(PlantByte::Port);
    assert!(rig.change(&[(0x101, 1)], &[]));
    let read: [u8; 4] = rig.seen(0x100);
    assert!(!rig.planter.overwrites_plant(Gpa(0x100), &read));
    rig.write(0x100, &read);
    rig.write(0x101, &[PORT]);
    assert_eq!(rig.all_own(), original());
    // The same byte without a plant beneath is the guest's.
    rig.write(0x102, &[PORT]);
    assert_eq!(rig.own(0x102), [PORT]);
}

/// The kernel's text patching writes its own `int3`, one byte at a time.
#[test]
fn a_single_int3_is_the_guests_own() {
    let rig = Rig::new(PlantByte::Int3);
    assert!(rig.change(&[(0x100, 1)], &[]));
    assert!(!rig.planter.overwrites_plant(Gpa(0xff), &[1, INT3]));
    rig.write(0xff, &[1, INT3]);
    assert_eq!(rig.own(0x100), [original()[0x100]]);
    assert!(rig.planter.overwrites_plant(Gpa(0x100), &[INT3]));
    rig.write(0x100, &[INT3]);
    assert_eq!(rig.own(0x100), [INT3]);
    assert!(rig.change(&[], &[0x100]));
    assert_eq!(rig.seen(0x100), [INT3]);
}

#[test]
fn withdrawn_plant_allows_guest_writes_until_it_returns() {
    let rig = Rig::new(PlantByte::Port);
    assert!(rig.change(&[(0x60, 1), (0x61, 1)], &[]));
    rig.planter
        .withdraw(&rig.paused, Gpa(0x60))
        .expect("a plant");
    assert!(!rig.planter.overwrites_plant(Gpa(0x60), &[0x55]));
    rig.write(0x60, &[0x55, 0x56]);
    assert_eq!(rig.seen(0x60), [0x55, PORT]);
    // While the plant is withdrawn, a byte equal to the plant's is the guest's own.
    rig.write(0x60, &[PORT]);
    assert_eq!(rig.own(0x60), [PORT, 0x56]);
    rig.write(0x60, &[0x57]);
    rig.planter
        .replant(&rig.paused, Gpa(0x60))
        .expect("a plant");
    assert_eq!(rig.seen(0x60), [PORT, PORT]);
    assert_eq!(rig.own(0x60), [0x57, 0x56]);
    // The plant is on top again.
    rig.write(0x60, &[0x58]);
    assert_eq!((rig.seen(0x60), rig.own(0x60)), ([PORT], [0x58]));
}

/// A change of a page.
#[derive(Clone, Debug)]
enum Action {
    Change {
        add: Vec<u64>,
        remove: Vec<u64>,
        failing: usize,
    },
    Write {
        at: u64,
        data: Vec<u8>,
    },
}

fn places() -> impl Strategy<Value = Vec<u64>> {
    // The addresses are close to the border of two pages, so that plants and writes overlap.
    proptest::collection::vec(0xff0..0x1010_u64, 0..4)
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (places(), places(), prop_oneof![Just(0), 1..8_usize]).prop_map(
            |(add, remove, failing)| Action::Change {
                add,
                remove,
                failing
            }
        ),
        (
            0xfe8..0x1018_u64,
            proptest::collection::vec(0..100_u8, 1..=8)
        )
            .prop_map(|(at, data)| Action::Write { at, data }),
    ]
}

proptest! {
    /// Compares with the simplest model: the original bytes, and the set of plants on top.
    #[test]
    fn memory_is_the_guests_own_bytes_with_the_plants_on_top(
        actions in proptest::collection::vec(action(), 1..40),
    ) {
        let rig = Rig::new(PlantByte::Port);
        let mut own = original();
        let mut plants = std::collections::BTreeSet::new();
        for action in actions {
            match action {
                Action::Change { add, remove, failing } => {
                    let adding: Vec<_> = add.iter().map(|gpa| (*gpa, 1)).collect();
                    rig.paused.requests.fail(failing);
                    if rig.change(&adding, &remove) {
                        plants.retain(|gpa| !remove.contains(gpa));
                        plants.extend(add);
                    }
                    rig.paused.requests.fail(0);
                }
                Action::Write { at, data } => {
                    if rig.write(at, &data) == Written::NotOurs {
                        rig.memory.put(at, &data);
                    }
                    for (byte, at) in data.iter().zip(usize::try_from(at).expect("small")..) {
                        own[at] = *byte;
                    }
                }
            }
            let mut shown = own.clone();
            for gpa in &plants {
                shown[usize::try_from(*gpa).expect("small")] = PORT;
            }
            prop_assert!(rig.memory.bytes() == shown, "shown");
            prop_assert!(rig.all_own() == own, "own");
        }
    }
}

const JUMP: [u8; 5] = [0xe9, 0xf1, 0xf2, 0xf3, 0xf4];
const NEAR: Jump = Jump::Near(JUMP);

#[test]
fn a_jump_lies_over_its_plant_and_goes_without_a_trace() {
    let rig = Rig::new(PlantByte::Port);
    assert!(rig.change(&[(0x1010, 5)], &[]));
    let own: [u8; 8] = rig.own(0x1010);
    let set = |gpa, jump| rig.planter.set_jump(&rig.paused, Gpa(gpa), jump);
    set(0x1010, Some(NEAR)).expect("put there");
    assert_eq!(rig.seen(0x1010), JUMP);
    assert_eq!(rig.own(0x1010), own);
    assert_eq!(rig.planter.pages().jumps(Gpa(0x1008), 8), []);
    assert_eq!(rig.planter.pages().jumps(Gpa(0x1008), 9), [Gpa(0x1010)]);
    assert_eq!(rig.planter.pages().jumps(Gpa(0x1014), 1), [Gpa(0x1010)]);
    assert_eq!(
        rig.planter.pages().shown(Gpa(0x1013), 8),
        [Gpa(0x1013), Gpa(0x1014)]
    );
    set(0x1012, Some(NEAR)).expect_err("it would lie on another");
    set(0x1ffc, Some(NEAR)).expect_err("it would go on beyond the page");
    set(0x3000, Some(NEAR)).expect_err("nobody keeps that page");
    // A vCPU runs alone, and is to read or execute a byte of the displaced instruction.
    let shown = rig.planter.show_alone(&rig.paused, &[Gpa(0x1013)], &[]);
    let shown = shown.expect("shown");
    assert_eq!(rig.seen::<4>(0x1011), own[1..5]);
    shown.end().expect("ended");
    assert_eq!(rig.seen(0x1010), JUMP);
    set(0x1010, None).expect("taken away");
    assert_eq!(rig.seen::<1>(0x1010), [PORT]);
    assert!(rig.change(&[], &[0x1010]));
    assert_eq!(rig.memory.bytes(), original());
}

#[test]
fn bytes_read_from_a_jump_and_stored_back_change_nothing() {
    let rig = Rig::new(PlantByte::Port);
    assert!(rig.change(&[(0x1010, 5)], &[]));
    let own: [u8; 5] = rig.own(0x1010);
    rig.planter
        .set_jump(&rig.paused, Gpa(0x1010), Some(NEAR))
        .expect("put there");
    let overwrites = |gpa, data: &[u8]| rig.planter.pages().overwrites_jump(Gpa(gpa), data);
    assert!(!overwrites(0x1010, &JUMP) && !overwrites(0x1011, &JUMP[1..]));
    assert!(!overwrites(0x100e, &[1, 2]) && !overwrites(0x1015, &[1, 2]));
    assert!(overwrites(0x100e, &[1, 2, 3]) && overwrites(0x1014, &[0]));
    // Few bytes are equal by chance.
    assert!(overwrites(0x1010, &JUMP[..1]) && overwrites(0x1012, &JUMP[2..]));
    rig.write(0x1010, &JUMP);
    assert_eq!(rig.own(0x1010), own);
    // A write nevertheless changes the guest's own byte beneath the jump.
    for byte in [0x77, JUMP[1]] {
        rig.write(0x1011, &[byte]);
        assert_eq!((rig.seen(0x1010), rig.own(0x1011)), (JUMP, [byte]));
    }
}
