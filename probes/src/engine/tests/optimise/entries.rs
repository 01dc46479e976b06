//! A guest that changes a page-directory entry of the region.

use super::*;

const RING_ENTRY: u64 = DATA_ENTRY + 8;
/// The bits set by the processor.
const ACCESSED_DIRTY: u64 = 0x60;

/// A rig with a counting and a recording probe, both with a jump: all three entries are filled.
fn two_jumps() -> (Rig, [Gva; 2]) {
    let mut kernel = SyntheticKernel::new();
    let at = ["roomy0", "roomy1"].map(|name| kernel.function(name, &ROOMY));
    kernel.function("cpu_number", &3u32.to_le_bytes());
    let rig = Rig::counting(&kernel, &["roomy0"]);
    rig.engine
        .register(&rig.paused, &[new("roomy1")])
        .expect("registered");
    for at in at {
        assert_eq!((rig.call(at, 1), rig.call(at, 1)), (2, 2));
        assert_eq!(rig.shown::<1>(at), [0xe9]);
    }
    (rig, at)
}

#[test]
fn a_changed_entry_takes_every_jump_away() {
    for entry in [CODE_ENTRY, DATA_ENTRY, RING_ENTRY] {
        for value in [0, rig_entry(entry) ^ (1 << 1), 0x1063] {
            let (rig, at) = two_jumps();
            assert!(!rig.engine.optimiser.region_needs_pause());
            let was = rig.word(entry);
            rig.memory.put(entry, &value.to_le_bytes());
            assert!(rig.engine.optimiser.region_needs_pause());
            rig.engine.optimiser.tend_region(&rig.paused);
            assert_all_exit(&rig, at);
            let notes = rig.notes();
            let said = [
                Gpa(entry).to_string(),
                format!("{was:#x}"),
                format!("{value:#x}"),
            ];
            assert!(
                said.iter().all(|said| notes[0].text.contains(said)),
                "{notes:?}"
            );
        }
    }
}

/// The value written by hyprobe for an entry of code.
fn rig_entry(entry: u64) -> u64 {
    two_jumps().0.word(entry)
}

/// The thread that writes the next jump detects the change, too.
#[test]
fn changed_entry_is_detected_at_the_next_jump() {
    let (rig, at) = two_jumps();
    rig.engine.set_optimising(&rig.paused, false).expect("set");
    rig.memory.put(DATA_ENTRY, &[0; 8]);
    rig.engine.set_optimising(&rig.paused, true).expect("set");
    assert_all_exit(&rig, at);
}

/// Asserts that plants count every hit and stay, and that the region and the guest's value stay.
fn assert_all_exit(rig: &Rig, at: [Gva; 2]) {
    let before = [rig.counted(0), rig.counted(1)];
    for _ in 0..3 {
        for at in at {
            assert_eq!(rig.call(at, 4), 5);
            assert_eq!(rig.shown::<1>(at), [0xee]);
        }
    }
    for (index, (hits, exits, _)) in before.into_iter().enumerate() {
        let told = rig.probe(index);
        assert_eq!((told.hits, told.exits), (hits + 3, exits + 3));
        assert_eq!(told.tier, Some(Tier::Emulated));
        let why = told.unoptimised.expect("a reason");
        assert!(why.contains("changed an entry"), "{why}");
    }
    assert!(!rig.engine.optimiser.region_needs_pause(), "once");
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert!(rig.paused.detour().is_some());
    assert_eq!(rig.shown(at[0]), ROOMY);
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    assert_eq!(rig.shown::<1>(at[0]), [0xee]);
    assert_eq!(rig.notes().len(), 1, "{:?}", rig.notes());
}

/// A vCPU is in a detour when the guest changes the entry of the counters, but the processor still has the old translation.
#[test]
fn vcpu_in_a_lost_detour_is_counted() {
    let (rig, at) = two_jumps();
    let mut vcpu = rig.calling(at[0], 4, STACK - 0x100);
    rig.run(&mut vcpu, 2);
    let was = rig.word(DATA_ENTRY);
    rig.memory.put(DATA_ENTRY, &[0; 8]);
    rig.engine.optimiser.tend_region(&rig.paused);
    rig.memory.put(DATA_ENTRY, &was.to_le_bytes());
    assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
    assert_eq!((vcpu.regs.rax, rig.counted(0).0), (5, 3));
}

#[test]
fn accessed_and_dirty_bits_are_no_change() {
    let (rig, at) = two_jumps();
    for entry in [CODE_ENTRY, DATA_ENTRY, RING_ENTRY] {
        let value = rig.word(entry);
        for noted in [value & !ACCESSED_DIRTY, value | ACCESSED_DIRTY] {
            rig.memory.put(entry, &noted.to_le_bytes());
            assert!(!rig.engine.optimiser.region_needs_pause());
        }
    }
    rig.call(at[0], 1);
    assert_eq!(rig.counted(0).0, 3);
    rig.engine
        .optimiser
        .hand_over_region(&rig.paused)
        .expect("handed over");
    let entries = [CODE_ENTRY, DATA_ENTRY, RING_ENTRY].map(|entry| rig.word(entry));
    assert_eq!(entries, [0; 3]);
}
