//! Detours stay when their probes go: a thread inside a detour continues, and is counted once.

use super::*;

/// From each instruction of the detour: the text is the guest's own at once, and the call counts if the call took the jump.
#[test]
fn thread_in_a_detour_runs_on_when_every_plant_goes() {
    let (kernel, at) = one_roomy();
    for steps in 0..8 {
        let rig = Rig::counting(&kernel, &["probed"]);
        rig.call(at, 0);
        let mut vcpu = rig.calling(at, 4, STACK - 0x100);
        assert_eq!(rig.run(&mut vcpu, steps), Stepped::On);
        rig.engine.disarm_all(&rig.paused).expect("disarmed");
        assert_eq!(rig.shown(at), ROOMY);
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
        let regs = vcpu.regs;
        let left = (regs.rax, regs.rflags, regs.rsp);
        assert_eq!(left, (5, FLAGS, STACK - 0x100), "after {steps} steps");
        let hits = 1 + u64::from(steps > 0);
        let counted = (hits, 1, Some(Tier::Optimised));
        assert_eq!(rig.counted(0), counted, "after {steps} steps");
        assert!(rig.engine.has_detour_region() && rig.notes().is_empty());
        assert_eq!(rig.call(at, 4), 5);
        assert_eq!(rig.counted(0), counted, "nothing is planted");
    }
}

#[test]
fn call_is_counted_once_when_plants_come_back() {
    let (kernel, at) = one_roomy();
    for steps in 0..8 {
        let rig = Rig::counting(&kernel, &["probed"]);
        rig.call(at, 0);
        let mut vcpu = rig.calling(at, 4, STACK - 0x100);
        assert_eq!(rig.run(&mut vcpu, steps), Stepped::On);
        rig.engine.disarm_all(&rig.paused).expect("disarmed");
        rig.engine.set_armed(&rig.paused, true).expect("armed");
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
        let regs = vcpu.regs;
        let left = (regs.rax, regs.rflags, regs.rsp);
        assert_eq!(left, (5, FLAGS, STACK - 0x100), "after {steps} steps");
        assert_eq!(rig.counted(0).0, 2, "after {steps} steps");
        assert!(rig.notes().is_empty());
    }
}

/// Behind an ftrace call the detour executes two instructions, and a plant is at the second.
#[test]
fn call_behind_an_ftrace_call_is_counted_once() {
    for steps in 0..8 {
        let (rig, at, _) = traced();
        rig.call(at, 0);
        let mut vcpu = rig.calling(at, 4, STACK - 0x100);
        assert_eq!(rig.run(&mut vcpu, steps), Stepped::On);
        rig.engine.disarm_all(&rig.paused).expect("disarmed");
        rig.engine.set_armed(&rig.paused, true).expect("armed");
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
        assert_eq!(vcpu.regs.rax, 5, "after {steps} steps");
        assert_eq!(rig.counted(0).0, 2, "after {steps} steps");
    }
}

/// Addresses of the region that the guest has saved stay unchanged.
#[test]
fn memory_of_the_guest_is_its_own_but_for_text_and_page_directory() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    rig.memory.put(STACK + 0x200, &REGION.0.to_le_bytes());
    rig.memory.put(STACK + 0x208, &(REGION.0 + 1).to_le_bytes());
    let before = rig.memory.bytes();
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    let after = rig.memory.bytes();
    let text = usize::try_from(gpa(at)).expect("small");
    let differs = |index: &usize| before[*index] != after[*index];
    let changed: Vec<_> = (0..before.len()).filter(differs).collect();
    assert!(!changed.is_empty() && changed.iter().all(|at| (text..text + 5).contains(at)));
    assert_eq!(rig.shown(at), ROOMY);
}

/// The same site with the same program has the same detour, for any probe.
#[test]
fn removed_probe_leaves_its_detour_to_the_next() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    let jump: [u8; 5] = rig.shown(at);
    for _ in 0..100 {
        let ids = rig.engine.inventory().ids();
        rig.engine.unregister(&rig.paused, &ids).expect("removed");
        assert_eq!(rig.shown(at), ROOMY);
        rig.engine
            .register(&rig.paused, &[count("probed")])
            .expect("registered");
        assert_eq!(rig.shown::<5>(at), jump);
        assert_eq!(rig.call(at, 4), 5);
        assert_eq!(rig.counted(0), (1, 0, Some(Tier::Optimised)));
    }
    assert_eq!(rig.word(DATA_ENTRY + 8), 0, "one page of words");
}

/// A task stands before the count when its probe is removed: the task has yet to execute the instruction, and counts for the next
/// probe that has the detour.
#[test]
fn straggler_counts_for_the_probe_that_has_the_detour() {
    for comes_back in [false, true] {
        let (kernel, at) = one_roomy();
        let rig = Rig::counting(&kernel, &["probed"]);
        rig.call(at, 0);
        let mut vcpu = rig.calling(at, 4, STACK - 0x100);
        rig.run(&mut vcpu, 2);
        let ids = rig.engine.inventory().ids();
        rig.engine.unregister(&rig.paused, &ids).expect("removed");
        let new = || {
            let new = [count("probed")];
            rig.engine.register(&rig.paused, &new).expect("registered");
        };
        if comes_back {
            new();
            assert_eq!(rig.counted(0).0, 0);
        }
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
        if !comes_back {
            new();
        }
        assert_eq!(rig.counted(0).0, u64::from(comes_back));
        rig.call(at, 0);
        assert_eq!(rig.counted(0).0, 1 + u64::from(comes_back));
    }
}

/// A record filled after the removal of its probe is dropped, and the ring continues.
#[test]
fn record_of_a_removed_probe_is_dropped() {
    for comes_back in [false, true] {
        let (kernel, at) = roomy_on_3();
        let rig = Rig::recording(&kernel, &["probed"]);
        rig.call(at, 0);
        rig.call(at, 1);
        let told = rig.hits().len();
        let mut vcpu = rig.calling(at, 4, STACK - 0x100);
        rig.run(&mut vcpu, 12);
        let ids = rig.engine.inventory().ids();
        rig.engine.unregister(&rig.paused, &ids).expect("removed");
        if comes_back {
            rig.engine
                .register(&rig.paused, &[new("probed")])
                .expect("registered");
        }
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
        assert_eq!(rig.engine.take_out_records(), 1);
        assert_eq!(rig.hits().len() - told, usize::from(comes_back));
        assert!(rig.notes().is_empty());
    }
}

/// If the ring is full after the removal of its probe, the detour continues behind its exit.
#[test]
fn exit_of_a_removed_probe_goes_on() {
    let (kernel, at) = roomy_on_3();
    let rig = Rig::recording(&kernel, &["probed"]);
    // The plant brings the jump, and the ring is not open before the next exit.
    rig.call(at, 0);
    let mut vcpu = rig.calling(at, 4, STACK - 0x100);
    rig.run(&mut vcpu, 3);
    let ids = rig.engine.inventory().ids();
    rig.engine.unregister(&rig.paused, &ids).expect("removed");
    let told = rig.hits().len();
    assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
    assert_eq!((vcpu.regs.rax, vcpu.regs.rflags), (5, FLAGS));
    assert_eq!(rig.hits().len(), told);
}

/// Another kernel takes over: the original page directory and text are restored.
#[test]
fn handing_over_zeroes_the_entries() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    rig.call(at, 0);
    assert!(rig.word(CODE_ENTRY) != 0 && rig.word(DATA_ENTRY) != 0);
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    rig.engine
        .optimiser
        .hand_over_region(&rig.paused)
        .expect("handed over");
    assert_eq!((rig.word(CODE_ENTRY), rig.word(DATA_ENTRY)), (0, 0));
    assert_eq!(rig.shown(at), ROOMY);
    assert!(!rig.engine.has_detour_region() && !rig.engine.optimiser.region_needs_pause());
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    for hits in 3..5 {
        assert_eq!(rig.call(at, 0), 1);
        assert_eq!(rig.shown::<1>(at), [0xee]);
        assert_eq!(rig.counted(0).0, hits);
    }
    let why = rig.probe(0).unoptimised.expect("a reason");
    assert!(why.contains("handed over"), "{why}");
    assert_eq!(rig.word(CODE_ENTRY), 0);
}

/// Each request fails in turn: the guest continues, and every call is counted.
#[test]
fn failed_request_leaves_the_plant() {
    let (kernel, at) = one_roomy();
    let mut fails = 0;
    for n in 1.. {
        let rig = Rig::counting(&kernel, &["probed"]);
        let mut vcpu = rig.calling(at, 1, STACK);
        let outcome = rig.engine.hits.on_hit(&mut vcpu, at).expect("handled");
        assert_eq!(outcome, HitOutcome::NeedsPause);
        rig.paused.requests.fail(n);
        let failed = rig
            .engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &rig.paused, at, |_, _| panic!("in place"))
            .is_err();
        let over = rig.paused.requests.made() < n;
        rig.paused.requests.fail(0);
        let is_optimised = rig.shown::<1>(at) == [0xe9];
        assert!(!failed || !is_optimised, "request {n}");
        fails += u64::from(!is_optimised);
        for i in 0..3 {
            assert_eq!(rig.call(at, i), i + 1, "request {n}");
        }
        assert_eq!(rig.counted(0).0, 4, "request {n}");
        if over {
            break;
        }
    }
    assert!(fails >= 3, "mapping, linking and the jump can fail");
}
