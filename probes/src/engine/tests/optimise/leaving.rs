//! Who is in a detour when the region goes, and what fails.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::*;

impl Rig {
    /// The stack of a frame is used for something else.
    pub(super) fn forget(&self, frame: Option<u64>) {
        if let Some(frame) = frame {
            self.memory.put(frame, &[0; 40]);
        }
    }

    /// What the session's thread does, some time later. Says whether the guest was paused for it.
    pub(super) fn tries_to_leave(&self) -> bool {
        let tries = self.engine.region_needs_pause(Instant::now() + LATER);
        if tries {
            self.engine.tend_region(&self.paused);
        }
        tries
    }
}

/// Long enough for the next try.
const LATER: Duration = Duration::from_secs(5);

/// Who has been counted and has not executed the instruction runs on in the detour, which stays until he has.
#[test]
fn the_knob_moves_everybody_out_of_detours() {
    let (kernel, at) = one_roomy();
    for interrupted in [false, true] {
        for steps in 0..7 {
            let rig = Rig::counting(&kernel, &["probed"]);
            rig.call(at, 0);
            let mut vcpu = rig.calling(at, 4, STACK - 0x100);
            assert_eq!(rig.run(&mut vcpu, steps), Stepped::On);
            let frame = interrupted.then(|| frame(&rig, &vcpu));
            if frame.is_none() {
                rig.stands(&[&vcpu]);
            }
            rig.engine.disarm_all(&rig.paused).expect("disarmed");
            let stays = matches!(steps, 3 | 4);
            assert_eq!(rig.paused.detour().is_some(), stays, "after {steps} steps");
            assert_eq!(rig.shown(at), ROOMY);
            match frame {
                Some(frame) => return_from(&rig, frame, &mut vcpu),
                None => heed(&rig, &mut vcpu),
            }
            assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
            let regs = vcpu.regs;
            let left = (regs.rax, regs.rflags, regs.rsp);
            assert_eq!(left, (5, FLAGS, STACK - 0x100), "after {steps} steps");
            let (hits, exits, tier) = rig.counted(0);
            assert_eq!((exits, tier), (1, Some(Tier::Optimised)));
            assert_eq!(hits, 1 + u64::from(steps > 2), "after {steps} steps");
            rig.forget(frame);
            rig.stands(&[]);
            assert_eq!(rig.tries_to_leave(), stays);
            assert!(rig.paused.detour().is_none() && rig.notes().is_empty());
            assert_eq!((rig.word(CODE_ENTRY), rig.word(DATA_ENTRY)), (0, 0));
        }
    }
}

/// Plants that come back in the same pause: from each instruction of the detour, as a vCPU that stands there and as a task
/// that was interrupted there.
#[test]
fn nobody_is_counted_twice_when_plants_come_back() {
    let (kernel, at) = one_roomy();
    {
        for interrupted in [false, true] {
            for steps in 0..8 {
                let rig = Rig::counting(&kernel, &["probed"]);
                rig.call(at, 0);
                let mut vcpu = rig.calling(at, 4, STACK - 0x100);
                assert_eq!(rig.run(&mut vcpu, steps), Stepped::On);
                let frame = interrupted.then(|| frame(&rig, &vcpu));
                if frame.is_none() {
                    rig.stands(&[&vcpu]);
                }
                rig.engine.disarm_all(&rig.paused).expect("disarmed");
                rig.engine.set_armed(&rig.paused, true).expect("armed");
                match frame {
                    Some(frame) => return_from(&rig, frame, &mut vcpu),
                    None => heed(&rig, &mut vcpu),
                }
                assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
                let regs = vcpu.regs;
                let left = (regs.rax, regs.rflags, regs.rsp);
                assert_eq!(left, (5, FLAGS, STACK - 0x100), "after {steps} steps");
                let (hits, _, _) = rig.counted(0);
                assert_eq!(hits, 2, "after {steps} steps, interrupted: {interrupted}");
                assert!(rig.notes().is_empty());
            }
        }
    }
}

/// A frame whose stack pointer is on a page that nobody can tell.
#[test]
fn who_cannot_be_moved_keeps_the_region() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    let mut vcpu = rig.calling(at, 4, STACK - 0x100);
    rig.run(&mut vcpu, 2);
    let torn = STACK - 0x1000 - 8;
    rig.memory.put(torn, &vcpu.regs.rip.to_le_bytes());
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert!(rig.paused.detour().is_some());
    assert_eq!(rig.shown(at), ROOMY);
    assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
    assert_eq!(vcpu.regs.rax, 5);
    // As long as that is to be seen, nobody is stopped for another try. After a while it is told of, once.
    let now = Instant::now();
    assert!(!rig.engine.region_needs_pause(now + LATER) && rig.notes().is_empty());
    for hours in 1..4 {
        let later = now + Duration::from_secs(3600 * hours);
        assert!(!rig.engine.region_needs_pause(later));
        assert_eq!(rig.notes().len(), 1);
    }
    // Gone from there, it goes with the next turn of the knob, too.
    rig.memory.put(torn, &[0; 8]);
    assert!(rig.engine.region_needs_pause(now + LATER));
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    assert!(!rig.engine.region_needs_pause(now + LATER), "it is needed");
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert!(rig.paused.detour().is_none());
    assert!(!rig.engine.region_needs_pause(now + LATER));
}

/// Somebody who is always in the way, wherever he is looked for: it is tried now and then, and some day no more.
#[test]
fn it_is_tried_less_and_less() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    let mut vcpu = rig.calling(at, 4, STACK - 0x100);
    rig.run(&mut vcpu, 3);
    rig.stands(&[&vcpu]);
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    let began = Instant::now();
    assert!(!rig.engine.region_needs_pause(began), "not at once");
    let mut tries = 0;
    while rig.tries_to_leave() {
        tries += 1;
        assert!(!rig.engine.region_needs_pause(Instant::now()));
    }
    assert!((3..20).contains(&tries), "{tries}");
    assert!(rig.paused.detour().is_some());
    // Who comes back finds it.
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    rig.stands(&[]);
    assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
    rig.call(at, 0);
    assert_eq!(rig.counted(0), (3, 1, Some(Tier::Optimised)));
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert!(rig.paused.detour().is_none());
}

/// Behind an ftrace call the detour executes two instructions, and a plant is at the second of them.
#[test]
fn nobody_is_counted_twice_behind_an_ftrace_call() {
    for interrupted in [false, true] {
        for steps in 0..8 {
            let (rig, at, _) = traced();
            rig.call(at, 0);
            let mut vcpu = rig.calling(at, 4, STACK - 0x100);
            assert_eq!(rig.run(&mut vcpu, steps), Stepped::On);
            let frame = interrupted.then(|| frame(&rig, &vcpu));
            if frame.is_none() {
                rig.stands(&[&vcpu]);
            }
            rig.engine.disarm_all(&rig.paused).expect("disarmed");
            assert_eq!(
                rig.paused.detour().is_some(),
                matches!(steps, 3..6),
                "after {steps} steps"
            );
            rig.engine.set_armed(&rig.paused, true).expect("armed");
            match frame {
                Some(frame) => return_from(&rig, frame, &mut vcpu),
                None => heed(&rig, &mut vcpu),
            }
            assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
            assert_eq!(vcpu.regs.rax, 5, "after {steps} steps");
            assert_eq!(rig.counted(0).0, 2, "after {steps} steps");
        }
    }
}

/// Until the vCPUs have left the last region no jump comes; then the next hit brings it.
#[test]
fn a_region_that_is_being_left_is_waited_for() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    rig.paused.moving.store(true, Ordering::Relaxed);
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    for _ in 0..2 {
        rig.call(at, 0);
        assert_eq!(rig.shown::<1>(at), [0xee]);
        assert_eq!(rig.probe(0).tier, Some(Tier::Emulated));
    }
    rig.paused.moving.store(false, Ordering::Relaxed);
    rig.call(at, 0);
    assert_eq!(rig.shown::<1>(at), [0xe9]);
    rig.call(at, 0);
    assert_eq!(rig.counted(0), (5, 4, Some(Tier::Optimised)));
}

/// Each request fails in turn: the guest runs as ever, and every call is counted.
#[test]
fn what_fails_leaves_the_plant() {
    let (kernel, at) = one_roomy();
    let mut fails = 0;
    for n in 1.. {
        let rig = Rig::counting(&kernel, &["probed"]);
        let mut vcpu = rig.calling(at, 1, STACK);
        let outcome = rig.engine.on_hit(&mut vcpu, at).expect("handled");
        assert_eq!(outcome, HitOutcome::NeedsPause);
        rig.paused.requests.fail(n);
        let failed = rig
            .engine
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

/// Moves that vCPUs have yet to heed keep the region for a moment, and it is tried again.
#[test]
fn a_region_is_not_left_before_vcpus_have_moved() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    rig.paused.moving.store(true, Ordering::Relaxed);
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert!(rig.paused.detour().is_some() && rig.notes().is_empty());
    rig.paused.moving.store(false, Ordering::Relaxed);
    rig.tries_to_leave();
    assert!(rig.paused.detour().is_none());
}
