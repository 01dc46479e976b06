//! Detours before the kernel has patched itself.

use super::super::skipping;
use super::int3::{handler, table};
use super::sharing::filtered;
use super::*;
use crate::Abilities;

/// `push rbp; lea eax, [rdi + 1]; pop rbp; ret`
const SHORT: [u8; 6] = [0x55, 0x8d, 0x47, 1, 0x5d, 0xc3];
const PLANT: u8 = PlantByte::Port.value();
/// The page directory of the fixed mappings, with the entries of the early region.
const FIXED_DIRECTORY: u64 = 0x7000;
const EARLY_ENTRIES: [u64; 3] = [
    FIXED_DIRECTORY + 8 * 508,
    FIXED_DIRECTORY + 8 * 509,
    FIXED_DIRECTORY + 8 * 510,
];
/// The flags of an entry of the rig's upper tables.
const TABLE_FLAGS: u64 = 0x23;

/// A starting kernel: the handler of `int3` is in use, the entries beside the image are not free yet.
struct Starting {
    rig: Rig,
    roomy: Gva,
    short: Gva,
    thunk: Gva,
    handler: Gva,
    traps: Gva,
    booted: Gva,
}

impl Starting {
    fn with(name: impl Fn(&mut SyntheticKernel), new: &[ProbeConfig<EngineAction>]) -> Self {
        Self::with_last("rest_init", name, new)
    }

    /// `last` is called when the kernel has patched itself.
    fn with_last(
        last: &str,
        name: impl Fn(&mut SyntheticKernel),
        new: &[ProbeConfig<EngineAction>],
    ) -> Self {
        Self::on(ABILITIES, last, name, new)
    }

    fn on(
        abilities: Abilities,
        last: &str,
        name: impl Fn(&mut SyntheticKernel),
        new: &[ProbeConfig<EngineAction>],
    ) -> Self {
        let mut kernel = SyntheticKernel::new();
        let tables = kernel.variable("init_top_pgt", 0);
        let roomy = kernel.function("roomy", &ROOMY);
        let short = kernel.function("short", &SHORT);
        let thunk = kernel.function("__x86_return_thunk", &[0xc3, 0xcc]);
        let traps = kernel.function("jump_label_init", &PLAIN);
        let booted = kernel.function(last, &PLAIN);
        let handler = handler(&mut kernel);
        kernel.function("cpu_number", &3u32.to_le_bytes());
        name(&mut kernel);
        let rig = Rig::with(&kernel, &[], abilities);
        table(&rig);
        let put = |at: u64, value: u64| rig.memory.put(at, &value.to_le_bytes());
        put(gpa(tables) + 8 * 511, super::super::UPPER | TABLE_FLAGS);
        put(super::super::UPPER + 8 * 511, FIXED_DIRECTORY | TABLE_FLAGS);
        // Not present, and not zero, as `__startup_64` leaves them.
        for entry in 9..512 {
            put(UPPER_DIRECTORY + 8 * entry, 0x1e2);
        }
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        rig.engine.register(&rig.paused, new).expect("registered");
        Self {
            rig,
            roomy,
            short,
            thunk,
            handler,
            traps,
            booted,
        }
    }

    fn counting() -> Self {
        let probes = ["roomy", "short", "__x86_return_thunk"].map(count);
        Self::with(|_| (), &probes)
    }

    /// A kernel that has reached `jump_label_init`, and has called each function once since.
    fn optimised() -> Self {
        let guest = Self::counting();
        guest.rig.call(guest.traps, 0);
        guest.call_each();
        guest
    }

    fn call_each(&self) {
        for (at, result) in [(self.roomy, 5), (self.short, 5)] {
            assert_eq!(self.rig.call(at, 4), result);
        }
        self.rig.call(self.thunk, 0);
    }

    /// `cleanup_highmap`
    fn clears_entries(&self) {
        for entry in 9..512 {
            self.rig.memory.put(UPPER_DIRECTORY + 8 * entry, &[0; 8]);
        }
    }

    fn boots(&self) {
        self.clears_entries();
        self.rig.call(self.booted, 0);
    }

    fn counts(&self) -> [(u64, u64); 3] {
        [0, 1, 2].map(|index| {
            let (hits, exits, _) = self.rig.counted(index);
            (hits, exits)
        })
    }

    fn shows(&self) -> [u8; 3] {
        [self.roomy, self.short, self.thunk].map(|at| self.rig.shown::<1>(at)[0])
    }
}

#[test]
fn first_hit_behind_jump_label_init_brings_the_detour() {
    let guest = Starting::counting();
    guest.call_each();
    assert_eq!(guest.shows(), [PLANT; 3]);
    guest.rig.call(guest.traps, 0);
    assert_eq!(guest.shows(), [PLANT; 3], "nobody has come by");
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, 0xcc, 0xcc]);
    for _ in 0..10 {
        guest.call_each();
    }
    assert_eq!(guest.counts(), [(12, 2); 3]);
    assert!(guest.rig.notes().is_empty(), "{:?}", guest.rig.notes());
}

#[test]
fn early_region_survives_the_clearing_of_the_entries_around_the_image() {
    let guest = Starting::optimised();
    let entries = EARLY_ENTRIES.map(|at| guest.rig.word(at) & 1);
    assert_eq!(entries, [1; 3], "code, counters, the table of the switch");
    guest.clears_entries();
    guest.call_each();
    assert_eq!(guest.counts(), [(2, 1); 3]);
    assert!(!guest.rig.engine.optimiser.region_needs_pause());
}

#[test]
fn rest_init_ends_early_only_detours_and_counts_stay_exact() {
    let guest = Starting::optimised();
    guest.boots();
    assert_eq!(guest.shows(), [0xe9, 0xcc, PLANT]);
    guest.call_each();
    assert_eq!(guest.counts(), [(2, 1), (2, 1), (2, 2)]);
    let why = guest.rig.probe(2).unoptimised.expect("it exits");
    assert!(why.contains("speculation"), "{why}");
}

#[test]
fn pages_that_are_added_after_rest_init_lie_beside_the_image() {
    let guest = Starting::optimised();
    guest.boots();
    guest
        .rig
        .engine
        .register(&guest.rig.paused, &[new("roomy+0x5")])
        .expect("registered");
    guest.call_each();
    // `lea` has no room for a jump: its record needs the ring.
    assert_ne!(guest.rig.word(CODE_ENTRY), 0);
    assert_eq!(guest.rig.word(FIXED_DIRECTORY + 8 * 511), 0);
}

#[test]
fn int3s_go_before_the_kernel_patches_its_handler_and_come_back_behind_it() {
    let guest = Starting::optimised();
    let rig = &guest.rig;
    // Half of a `clac` over `nop; cld`: `add` would change a register of any code that executes an int3.
    rig.guest_writes(guest.handler.wrapping_add(1), &[0x01]);
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
    rig.guest_writes(guest.handler.wrapping_add(1), &[0xfc]);
    guest.boots();
    assert_eq!(guest.shows(), [0xe9, 0xcc, PLANT]);
    guest.call_each();
    assert_eq!(guest.counts(), [(3, 1), (3, 2), (3, 3)]);
}

#[test]
fn int3s_come_back_early_if_the_handler_is_whole_when_they_are_hit() {
    let guest = Starting::optimised();
    // A `nop` for `cld`.
    guest
        .rig
        .guest_writes(guest.handler.wrapping_add(1), &[0x90]);
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, 0xcc, 0xcc]);
    guest.call_each();
    assert_eq!(guest.counts(), [(3, 1), (3, 2), (3, 2)]);
}

#[test]
fn guest_that_uses_the_entries_above_the_fixed_mappings_is_optimised_at_rest_init() {
    let guest = Starting::counting();
    guest
        .rig
        .memory
        .put(EARLY_ENTRIES[1], &0x1e3_u64.to_le_bytes());
    guest.rig.call(guest.traps, 0);
    guest.call_each();
    assert_eq!(guest.shows(), [PLANT; 3]);
    guest.boots();
    assert_eq!(guest.shows()[..2], [0xe9, 0xcc]);
}

#[test]
fn kernel_that_may_use_fred_gets_no_early_int3() {
    let name = |kernel: &mut SyntheticKernel| {
        kernel.function("asm_fred_entrypoint_kernel", &PLAIN);
    };
    let guest = Starting::with(name, &["roomy", "short", "__x86_return_thunk"].map(count));
    guest.rig.call(guest.traps, 0);
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
}

#[test]
fn records_and_filtered_counts_wait_for_rest_init() {
    let small = |name| filtered("arg0 < 9", count(name));
    for new in [["roomy", "short"].map(new), ["roomy", "short"].map(small)] {
        let guest = Starting::with(|_| (), &new);
        guest.rig.call(guest.traps, 0);
        guest.call_each();
        guest.call_each();
        assert_eq!(guest.shows()[..2], [PLANT; 2]);
        guest.boots();
        assert_eq!(guest.shows()[..2], [0xe9, 0xcc]);
    }
}

#[test]
fn rest_init_that_an_injection_skips_ends_early_int3s() {
    let [roomy, short, thunk] = ["roomy", "short", "__x86_return_thunk"].map(count);
    let guest = Starting::with(|_| (), &[roomy, short, thunk, skipping("kprobe:rest_init")]);
    guest.rig.call(guest.traps, 0);
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, 0xcc, 0xcc]);
    guest.boots();
    assert_eq!(guest.shows(), [0xe9, 0xcc, PLANT]);
}

#[test]
fn early_int3s_return_at_their_next_hit_when_the_probe_on_the_handler_goes() {
    let mut guest = Starting::counting();
    guest.rig.paused.further_vcpus = 1;
    let rig = &guest.rig;
    rig.call(guest.traps, 0);
    guest.call_each();
    let handler = rig.engine.register(&rig.paused, &[count("asm_exc_int3")]);
    let handler = handler.expect("registered");
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
    let removed = rig.engine.unregister(&rig.paused, &handler);
    removed.expect("removed");
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, 0xcc, 0xcc]);
}

#[test]
fn early_int3s_go_with_a_plant_at_rest_init_that_withdraws() {
    let abilities = Abilities {
        debug_execute: false,
        ..ABILITIES
    };
    let probes = ["roomy", "short", "__x86_return_thunk"].map(count);
    let mut guest = Starting::on(abilities, "rest_init", |_| (), &probes);
    guest.rig.paused.further_vcpus = 1;
    guest.rig.call(guest.traps, 0);
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, 0xcc, 0xcc]);
    let table = guest.rig.engine.hits.plants.table.load_full();
    let plant = table.at(guest.booted).expect("a plant");
    let withdrawn = guest
        .rig
        .engine
        .paused_hits
        .stand_ins
        .withdraw_for_read(&guest.rig.paused, plant);
    withdrawn.expect("withdrawn");
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
    // A debug register has become free, and the vCPU stops there after all: the second has no interrupt table yet.
    guest.clears_entries();
    let mut vcpu = vcpu(guest.booted);
    let reached = guest
        .rig
        .engine
        .paused_hits
        .kernel_events
        .on_boot_patched(&mut vcpu, &guest.rig.paused);
    reached.expect("handled");
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
}

#[test]
fn kernel_without_rest_init_gets_nothing_early() {
    let guest = Starting::with_last("another", |_| (), &["roomy", "short"].map(count));
    let has_entries = || EARLY_ENTRIES.map(|at| guest.rig.word(at)) != [0; 3];
    guest.rig.call(guest.traps, 0);
    guest.call_each();
    assert!(!has_entries());
}

#[test]
fn second_vcpu_that_has_not_started_keeps_int3s_away_from_rest_init_on() {
    let mut guest = Starting::counting();
    guest.rig.paused.further_vcpus = 1;
    guest.rig.call(guest.traps, 0);
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, 0xcc, 0xcc]);
    guest.boots();
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
    guest.call_each();
    assert_eq!(guest.shows(), [0xe9, PLANT, PLANT]);
}
