//! Instructions that the hardware executes, with the other vCPUs paused and the pages writable.

use std::sync::atomic::Ordering;

use address::Gva;
use text::Ran;

use super::{BEFORE, MOV, MOVUPS, Watched, watched};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::tests::{Rig, gpa};
use crate::resolve::synthetic::SyntheticKernel;

/// `int 0x30` gate: present, an interrupt gate of ring 0.
pub(super) const GATE: u64 = 0x8e << 40;

#[test]
fn instruction_for_the_hardware_runs_alone_without_protection() {
    let watched = watched(&MOVUPS, &["watch:counter:8"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
    let (rig, next) = (&watched.rig, watched.at.wrapping_add(3));
    let writes = &rig.engine.protected_accesses;
    let stepped = watched.step(&mut vcpu, |vcpu, to| {
        assert!(rig.paused.lifted.load(Ordering::Relaxed));
        assert!(to.stops().contains(&next), "{to:?}");
        // A second exit at a page that is not protected now has another reason.
        let again = writes.on_protected_access(vcpu, watched.at);
        assert_eq!(again.expect("looked at"), HitOutcome::NotOurs);
        rig.memory.put(watched.data, &99_u64.to_le_bytes());
        vcpu.regs.rip = next.0;
        Ok(Ran::At(next))
    });
    assert_eq!(stepped, HitOutcome::Resume);
    assert!(!rig.paused.lifted.load(Ordering::Relaxed));
    assert_eq!(watched.writes(), [(BEFORE, 99)]);
    assert_eq!(rig.hits()[0].ip.0, watched.at.0);
}

#[test]
fn interrupted_delivery_runs_to_the_first_instruction_of_the_handler() {
    const VECTOR: u8 = 0x30;
    const TABLE: u64 = 0x7000;
    const HANDLER: u64 = 0x9000;
    let watched = watched(&MOV, &["watch:counter:8"]);
    let entry = (HANDLER & 0xffff) | 0x10 << 16 | GATE;
    let at = TABLE + 16 * u64::from(VECTOR);
    watched.rig.memory.put(at, &entry.to_le_bytes());
    let mut vcpu = watched.vcpu(watched.data, 7);
    vcpu.undelivered = Some(VECTOR);
    (vcpu.sregs.idt.base, vcpu.sregs.idt.limit) = (TABLE, 0xfff);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
    let rig = &watched.rig;
    let stepped = watched.step(&mut vcpu, |_, to| {
        assert_eq!(to.stops(), [Gva(HANDLER)]);
        assert_ne!(rig.byte(HANDLER), 0, "a stop");
        rig.memory.put(watched.data, &1_u64.to_le_bytes());
        Ok(Ran::At(Gva(HANDLER)))
    });
    assert_eq!(stepped, HitOutcome::Resume);
    assert_eq!(rig.byte(HANDLER), 0);
    assert_eq!(watched.writes(), [(BEFORE, 1)]);
    let hit = &rig.hits()[0];
    assert_eq!(
        (hit.ip.0, &*hit.symbol),
        (watched.at.0, "delivery of vector 0x30")
    );
    assert_eq!(unprotected(&watched), None);
}

#[test]
fn waiting_vcpu_resumes_after_the_last_watchpoint_is_removed() {
    let watched = watched(&MOVUPS, &["watch:counter:8"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
    // A client's pause comes first: the vCPU counts as parked while it waits.
    let rig = &watched.rig;
    let ids = rig.engine.inventory().ids();
    rig.engine.unregister(&rig.paused, &ids).expect("removed");
    let stepped = watched.step(&mut vcpu, |_, _| panic!("the page is writable"));
    assert_eq!(stepped, HitOutcome::Resume);
    assert_eq!(vcpu.regs.rip, watched.at.0);
}

#[test]
fn waiting_vcpu_executes_a_plant_that_was_armed_at_its_rip() {
    let watched = watched(&MOVUPS, &["watch:counter:8"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
    watched.register("kprobe:writer");
    let stepped = watched.step(&mut vcpu, |_, _| panic!("the hit would be missed"));
    assert_eq!(stepped, HitOutcome::Resume);
    assert_eq!(vcpu.regs.rip, watched.at.0);
}

#[test]
fn waiting_vcpu_with_another_rip_resumes_there() {
    let watched = watched(&MOVUPS, &["watch:counter:8"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
    vcpu.regs.rip += 0x100;
    let stepped = watched.step(&mut vcpu, |_, _| panic!("another instruction"));
    assert_eq!(stepped, HitOutcome::Resume);
}

#[test]
fn original_instruction_of_a_plant_is_executed_without_protection() {
    let watched = watched(&MOVUPS, &["watch:counter:8", "kprobe:writer"]);
    let rig = &watched.rig;
    let mut vcpu = watched.vcpu(watched.data, 0);
    let hit = rig.engine.hits.on_hit(&mut vcpu, watched.at);
    assert_eq!(hit.expect("handled"), HitOutcome::NeedsPause);
    let next = watched.at.wrapping_add(3);
    let hits = &rig.engine.paused_hits;
    let outcome = hits.on_paused_hit(&mut vcpu, &rig.paused, watched.at, |vcpu, _| {
        // The plant is open, and the original instruction exits at the protected page.
        let stepped = watched.step(vcpu, |vcpu, _| {
            rig.memory.put(watched.data, &99_u64.to_le_bytes());
            vcpu.regs.rip = next.0;
            Ok(Ran::At(next))
        });
        assert_eq!(stepped, HitOutcome::Resume);
        Ok(Ran::At(next))
    });
    assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
    assert_eq!(watched.writes(), [(BEFORE, 99)]);
    assert_eq!((watched.counts(0).0, watched.counts(1).0), (1, 1));
}

/// The missed writes of the first probe.
fn unprotected(watched: &Watched) -> Option<u64> {
    watched.rig.probe(0).missed.get("unprotected").copied()
}

#[test]
fn writes_of_code_without_a_stop_behind_it_are_missed() {
    let watched = watched(&MOV, &["watch:counter:8", "watch:neighbour:8"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    // Not 64-bit code: the instruction is not decoded.
    vcpu.state.system.segments.cs.attributes = 0;
    assert_eq!(watched.exit(&mut vcpu), HitOutcome::NeedsPause);
    let handler = Gva(0x9000);
    for ran in [Ran::Nowhere, Ran::At(handler)] {
        let stepped = watched.step(&mut vcpu, |_, _| {
            for value in [1_u64, 2, BEFORE] {
                watched.rig.memory.put(watched.data, &value.to_le_bytes());
            }
            Ok(ran)
        });
        assert_eq!(stepped, HitOutcome::Resume);
    }
    assert_eq!(watched.writes(), []);
    for probe in [0, 1] {
        let missed = watched.rig.probe(probe).missed;
        assert_eq!(missed, [("unprotected".to_owned(), 2)].into());
    }
}

#[test]
fn missed_stop_behind_the_instruction_is_counted() {
    let watched = watched(&MOVUPS, &["watch:counter:8"]);
    let next = watched.at.wrapping_add(3);
    let mut vcpu = watched.vcpu(watched.data, 0);
    for (ran, missed) in [
        (Ran::At(next), None),
        (Ran::Nowhere, Some(1)),
        (Ran::Ended, Some(2)),
    ] {
        watched.step(&mut vcpu, |vcpu, _| {
            // The vCPU has gone on.
            vcpu.regs.rip = next.0;
            Ok(ran)
        });
        assert_eq!(unprotected(&watched), missed, "{ran:?}");
        vcpu.regs.rip = watched.at.0;
    }
}

#[test]
fn delivery_without_a_known_handler_is_missed() {
    let watched = watched(&MOV, &["watch:counter:8"]);
    let mut vcpu = watched.vcpu(watched.data, 0);
    vcpu.undelivered = Some(0x30);
    watched.step(&mut vcpu, |_, to| {
        assert_eq!(to.stops(), []);
        Ok(Ran::Nowhere)
    });
    assert_eq!(unprotected(&watched), Some(1));
}

#[test]
fn emulated_write_of_a_vcpu_without_protection_is_reported_once() {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("vector", &MOVUPS);
    let store = kernel.function("writer", &MOV);
    let data = gpa(kernel.variable("counter", BEFORE));
    let rig = Rig::new(&kernel, &["watch:counter:8", "kprobe:writer"]);
    let watched = Watched { rig, at, data };
    let mut vcpu = watched.vcpu(data, 0);
    let stepped = watched.step(&mut vcpu, |vcpu, _| {
        watched.rig.memory.put(data, &33_u64.to_le_bytes());
        // The vCPU reaches a kprobe, whose store the emulator makes.
        let regs = vcpu.regs;
        vcpu.regs.rip = store.0;
        (vcpu.regs.rdi, vcpu.regs.rax) = (data, 77);
        let hit = watched.rig.engine.hits.on_hit(vcpu, store);
        assert_eq!(hit.expect("handled"), HitOutcome::Resume);
        vcpu.regs = regs;
        Ok(Ran::Nowhere)
    });
    assert_eq!(stepped, HitOutcome::Resume);
    assert_eq!(watched.writes(), [(BEFORE, 33), (33, 77)]);
    let hits = watched.rig.hits().into_iter();
    let writers = hits.filter(|hit| hit.write.is_some()).map(|hit| hit.ip.0);
    assert_eq!(writers.collect::<Vec<_>>(), [at.0, store.0]);
}

#[test]
fn step_beside_the_watched_bytes_counts_an_exit() {
    let watched = watched(&MOVUPS, &["watch:counter:8"]);
    let next = watched.at.wrapping_add(3);
    let mut vcpu = watched.vcpu(watched.data + 16, 0);
    let stepped = watched.step(&mut vcpu, |vcpu, _| {
        let beside = watched.data + 16;
        watched.rig.memory.put(beside, &1_u64.to_le_bytes());
        vcpu.regs.rip = next.0;
        Ok(Ran::At(next))
    });
    assert_eq!(stepped, HitOutcome::Resume);
    assert_eq!(watched.counts(0), (0, 1));
}

#[test]
fn watchpoint_armed_without_protection_is_protected_afterwards() {
    let watched = watched(&MOVUPS, &["watch:counter:8"]);
    let rig = &watched.rig;
    let mut vcpu = watched.vcpu(watched.data, 0);
    watched.step(&mut vcpu, |_, _| {
        rig.paused.lifted.store(false, Ordering::Relaxed);
        let ids = rig.engine.inventory().ids();
        rig.engine.unregister(&rig.paused, &ids).expect("removed");
        watched.register("watch:neighbour:8");
        assert!(rig.paused.lifted.load(Ordering::Relaxed));
        Ok(Ran::Nowhere)
    });
    assert!(!rig.paused.lifted.load(Ordering::Relaxed));
    assert_eq!(watched.protected(), [watched.data & !0xfff]);
}
