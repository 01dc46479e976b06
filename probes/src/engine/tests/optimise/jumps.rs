//! The conditions under which jumps come and go.

use super::sharing::{CountingHandler, followed, handled};
use super::*;

#[test]
fn the_first_hit_exits_and_no_other() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    assert_eq!(rig.shown(at), [0xee, 1, 0, 0, 0]);
    assert_eq!(rig.call(at, 5), 6);
    assert_eq!(rig.counted(0), (1, 1, Some(Tier::Optimised)));
    let [jump, ..] = rig.shown::<5>(at);
    assert_eq!(jump, 0xe9);
    assert_eq!(rig.own(at), ROOMY);
    for n in 0..100 {
        assert_eq!(rig.call(at, n), n + 1);
    }
    assert_eq!(rig.counted(0), (101, 1, Some(Tier::Optimised)));
    assert!(rig.notes().is_empty());
}

#[test]
fn cells_can_be_written_and_not_executed_and_code_the_other_way_round() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    let bare = Bare {
        ram: Arc::clone(&rig.memory),
        detour: rig.paused.detour(),
    };
    let mut paging = vcpu(at).state.paging;
    let code = walk(&bare, &paging, REGION).expect("mapped");
    assert!(code.executable && !code.writable && !code.user);
    assert!(walk(&bare, &paging, CELLS).expect("mapped").writable);

    // Execution is disabled if the processor supports NX.
    paging.efer |= 1 << 11;
    let mut vcpu = vcpu(at);
    vcpu.state.paging = paging;
    let rig = Rig::counting(&kernel, &["probed"]);
    vcpu.regs = rig.calling(at, 0, STACK).regs;
    rig.run(&mut vcpu, 100);
    let bare = Bare {
        ram: Arc::clone(&rig.memory),
        detour: rig.paused.detour(),
    };
    let cells = walk(&bare, &paging, CELLS).expect("mapped");
    assert!(cells.writable && !cells.executable && !cells.user);
}

#[test]
fn a_call_that_is_not_traced_is_jumped_over_and_its_plant_stays() {
    let (rig, at, _) = traced();
    let behind = at.wrapping_add(5);
    let [jump, _, _, _, _, plant] = rig.shown::<6>(at);
    assert_eq!((jump, plant), (0xe9, 0xee));
    for n in 0..10 {
        assert_eq!(rig.call(at, n), n + 1);
    }
    assert_eq!(rig.counted(0), (10, 0, Some(Tier::Optimised)));
    // A task interrupted before the plant, in the time without a jump.
    assert_eq!(rig.call(behind, 1), 2);
    assert_eq!(rig.counted(0).0, 11);
    assert_eq!(rig.own(at), TRACED);
}

#[test]
fn the_kernel_reads_its_own_bytes_and_patches_them() {
    let (rig, at, copy) = traced();
    // The kernel compares before patching.
    let mut vcpu = rig.calling(copy, 0x2_0000, STACK);
    (vcpu.regs.rsi, vcpu.regs.rdx) = (at.0, 5);
    let outcome = rig.engine.hits.on_hit(&mut vcpu, copy).expect("handled");
    assert_eq!(outcome, HitOutcome::NeedsPause);
    let mut seen = [0; 6];
    rig.engine
        .paused_hits
        .on_paused_hit(&mut vcpu, &rig.paused, copy, |_, _| {
            seen = rig.shown(at);
            Ok(Ran::At(Gva(RETURN)))
        })
        .expect("handled");
    assert_eq!(seen[..5], TRACED[..5]);
    assert_eq!(rig.shown::<1>(at), [0xe9]);

    // The kernel writes int3, the rest, and the first byte; each read returns the bytes just written.
    let call = [0xe8, 1, 2, 3, 4];
    rig.guest_writes(at, &[0xcc]);
    assert_eq!(rig.shown(at), [0xcc, 0x1f, 0x44, 0, 0]);
    rig.guest_writes(at.wrapping_add(1), &call[1..]);
    rig.guest_writes(at, &call[..1]);
    assert_eq!(rig.shown(at), call);
    // Calls are counted as before.
    assert_eq!(rig.call(at.wrapping_add(5), 7), 8);
    let (hits, exits, tier) = rig.counted(0);
    assert_eq!((hits, exits, tier), (1, 1, Some(Tier::Emulated)));
    assert_eq!(rig.shown(at), call, "a call is not jumped over");
    assert!(rig.probe(0).unoptimised.is_some());
    // The kernel switches the call off again.
    for (n, byte) in TRACED[..5].iter().enumerate() {
        rig.guest_writes(at.wrapping_add(n as u64), &[*byte]);
    }
    assert_eq!(rig.call(at, 7), 8, "the plant tells that it may be again");
    assert_eq!(rig.shown::<1>(at), [0xe9]);
    assert_eq!(rig.call(at, 7), 8);
    assert_eq!(rig.counted(0), (3, 2, Some(Tier::Optimised)));
}

#[test]
fn a_guest_write_makes_the_jump_go_and_the_next_hit_brings_it_back() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    // The guest stores back the bytes read from memory.
    let shown: [u8; 5] = rig.shown(at);
    rig.guest_writes(at, &shown);
    assert_eq!((rig.shown(at), rig.own(at)), (shown, ROOMY));
    // mov eax, 0x101
    rig.guest_writes(at.wrapping_add(2), &[1]);
    assert_eq!(rig.shown(at), [0xee, 1, 1, 0, 0]);
    assert_eq!(rig.call(at, 0), 0x101);
    assert_eq!(rig.shown::<1>(at), [0xe9]);
    assert_eq!(rig.call(at, 0), 0x101);
    assert_eq!(rig.counted(0), (3, 2, Some(Tier::Optimised)));
}

#[test]
fn change_that_needs_an_exit_removes_the_jump() {
    type Change = fn(&Rig);
    let changes: [(&str, Change, Change); 5] = [
        (
            "a probe beside it that needs an exit",
            |rig| {
                let beside = [handled("probed")];
                rig.engine.register(&rig.paused, &beside).expect("done");
            },
            |rig| {
                let last = rig.engine.inventory().ids()[1];
                rig.engine.unregister(&rig.paused, &[last]).expect("done");
            },
        ),
        (
            "a return probe beside it that has a handler",
            |rig| {
                let follows = followed(
                    "probed",
                    EngineAction::HandleReturn(Arc::new(CountingHandler::default())),
                );
                rig.engine.register(&rig.paused, &[follows]).expect("done");
            },
            |rig| {
                let last = rig.engine.inventory().ids()[1];
                rig.engine.unregister(&rig.paused, &[last]).expect("done");
            },
        ),
        (
            "the knob of optimisation",
            |rig| rig.engine.set_optimising(&rig.paused, false).expect("set"),
            |rig| rig.engine.set_optimising(&rig.paused, true).expect("set"),
        ),
        (
            "a switch",
            |rig| {
                let id = rig.engine.inventory().ids()[0];
                rig.engine
                    .set_enabled(&rig.paused, id, false)
                    .expect("done");
                assert_eq!(rig.call(Gva(AT), 0), 1);
                rig.engine.set_enabled(&rig.paused, id, true).expect("done");
                rig.engine.set_optimising(&rig.paused, false).expect("set");
            },
            |rig| rig.engine.set_optimising(&rig.paused, true).expect("set"),
        ),
        (
            "a switch while optimisation is off",
            |rig| {
                let id = rig.engine.inventory().ids()[0];
                let set = |enabled| rig.engine.set_enabled(&rig.paused, id, enabled);
                set(false).expect("done");
                rig.engine.set_optimising(&rig.paused, false).expect("set");
                set(true).expect("done");
            },
            |rig| rig.engine.set_optimising(&rig.paused, true).expect("set"),
        ),
    ];
    let (kernel, at) = one_roomy();
    assert_eq!(at.0, AT);
    for (name, begin, end) in changes {
        let rig = Rig::counting(&kernel, &["probed"]);
        assert_eq!((rig.call(at, 0), rig.call(at, 1)), (1, 2));
        begin(&rig);
        assert_eq!(rig.shown(at), [0xee, 1, 0, 0, 0], "{name}");
        assert_eq!(rig.probe(0).tier, Some(Tier::Emulated), "{name}");
        let why = rig.probe(0).unoptimised;
        assert_eq!(name.contains("beside"), why.is_some(), "{name}: {why:?}");
        assert!(why.is_none_or(
            |why| why.contains("`kprobe:probed`") || why.contains("`kretprobe:probed`")
        ));
        if !name.contains("return") {
            assert_eq!(rig.call(at, 2), 3);
            assert_eq!(rig.counted(0).0, 3, "{name}");
        }
        let before = rig.counted(0);
        end(&rig);
        assert_eq!(rig.shown::<1>(at), [0xe9], "{name}");
        assert_eq!(rig.call(at, 3), 4);
        let after = (before.0 + 1, before.1, Some(Tier::Optimised));
        assert_eq!(rig.counted(0), after, "{name}");
        assert_eq!(rig.probe(0).unoptimised, None, "{name}");
    }
}

#[test]
fn unoptimisable_site_has_a_reason() {
    for (code, why) in [
        (
            &PLAIN[..],
            "`push rbp` has fewer than the 5 bytes of a jump; the kernel's handler of int3 is not of a known kind",
        ),
        (
            // call behind it; ret; ret
            &[0xe8, 1, 0, 0, 0, 0xc3, 0xc3],
            "there is a call at 0xffffffff81000000, among other instructions that a jump would replace; the kernel's handler of int3 is not of a known kind",
        ),
    ] {
        let (kernel, at) = one("probed", code);
        let rig = Rig::counting(&kernel, &["probed"]);
        for _ in 0..2 {
            rig.call(at, 0x2_0000);
        }
        let probe = rig.probe(0);
        assert_eq!((probe.hits, probe.exits), (2, 2));
        assert_eq!(probe.unoptimised.as_deref(), Some(why));
        assert!(rig.paused.detour().is_none());
    }
    // Reasons that only the survey of the whole kernel finds.
    let copied = "this code is copied or patched by the kernel in ways of its own; the kernel's handler of int3 is not of a known kind";
    let branched = "something may branch to 0xffffffff81000001, in the middle of what a jump would replace; the kernel's handler of int3 is not of a known kind";
    // mov eax, 1; ret; jmp into the mov
    let overlapping = [0xb8, 1, 0, 0, 0, 0xc3, 0xeb, 0xf9];
    for (name, code, why) in [
        ("ftrace_caller", &ROOMY[..], copied),
        ("probed", &overlapping, branched),
    ] {
        let (kernel, at) = one(name, code);
        let rig = Rig::counting(&kernel, &[name]);
        rig.call(at, 0);
        assert_eq!(rig.shown::<1>(at), [0xee], "{name}");
        assert_eq!(rig.probe(0).unoptimised.as_deref(), Some(why));
    }
    // No probe counts.
    let (kernel, at) = one_roomy();
    let rig = Rig::new(&kernel, &["kprobe:probed"]);
    rig.call(at, 0);
    assert_eq!(rig.shown::<1>(at), [0xee]);
    assert_eq!(rig.probe(0).unoptimised, None);
}

#[test]
fn vcpu_in_a_detour_when_the_jump_goes_is_counted() {
    let (kernel, at) = one_roomy();
    for steps in 0..7 {
        let rig = Rig::counting(&kernel, &["probed"]);
        rig.call(at, 0);
        let mut vcpu = rig.calling(at, 4, STACK - 0x100);
        assert_eq!(rig.run(&mut vcpu, steps), Stepped::On);
        rig.engine
            .set_optimising(&rig.paused, false)
            .expect("jumps go");
        assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
        assert_eq!((vcpu.regs.rax, vcpu.regs.rflags), (5, FLAGS));
        assert_eq!(rig.counted(0).0, 2, "after {steps} steps");
    }
}

#[test]
fn jump_that_was_switched_a_thousand_times_still_comes() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    rig.call(at, 0);
    for _ in 0..2000 {
        for wanted in [false, true] {
            rig.engine
                .set_optimising(&rig.paused, wanted)
                .expect("switched");
        }
    }
    assert_eq!(rig.shown::<1>(at), [0xe9]);
    assert_eq!(rig.counted(0), (1, 1, Some(Tier::Optimised)));
}

#[test]
fn site_rewritten_again_and_again_keeps_its_plant_with_the_reason() {
    let (kernel, at) = one_roomy();
    let rig = Rig::counting(&kernel, &["probed"]);
    for number in 0..10_000_u32 {
        // mov eax, 0, or 1
        rig.guest_writes(at.wrapping_add(1), &[(number % 2) as u8]);
    }
    for n in 0..3 {
        assert_eq!(rig.call(at, n), n + 1);
    }
    assert_eq!(rig.shown::<1>(at), [0xee]);
    assert_eq!(rig.counted(0).1, 3);
    let why = rig.probe(0).unoptimised.expect("a reason");
    assert!(why.contains("ten thousand times"), "{why}");
}

/// `call 1f; int3; 1: mov [rsp], rax; ret`
const RETPOLINE: [u8; 11] = [0xe8, 1, 0, 0, 0, 0xcc, 0x48, 0x89, 0x04, 0x24, 0xc3];
/// `call 1f; 0: pause; lfence; jmp 0b; 1: mov [rsp], rax; ret`
const LOOPING_RETPOLINE: [u8; 17] = [
    0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x48, 0x89, 0x04, 0x24, 0xc3,
];
const THUNK: &str = "__x86_indirect_thunk_rax";

/// A guest with a retpoline that calls a roomy function through RAX.
struct Retpoline {
    rig: Rig,
    at: Gva,
    target: Gva,
}

impl Retpoline {
    fn with(code: &[u8], probes: &[ProbeConfig<EngineAction>]) -> Self {
        let mut kernel = SyntheticKernel::new();
        let target = kernel.function("target", &ROOMY);
        let at = kernel.function(THUNK, code);
        // Records carry the number of the processor.
        kernel.function("cpu_number", &3u32.to_le_bytes());
        let rig = Rig::with(&kernel, &[], ABILITIES);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        rig.engine
            .register(&rig.paused, probes)
            .expect("registered");
        Self { rig, at, target }
    }

    fn calling(&self, n: u64) -> FakeVcpu {
        let mut vcpu = self.rig.calling(self.at, n, STACK);
        vcpu.regs.rax = self.target.0;
        vcpu
    }

    fn finish(&self, vcpu: &mut FakeVcpu, n: u64) {
        assert_eq!(self.rig.run(vcpu, 200), Stepped::Returned);
        assert_eq!(vcpu.regs.rax, n + 1);
        assert_eq!((vcpu.regs.rsp, vcpu.regs.rflags), (STACK, FLAGS));
    }

    fn call(&self, n: u64) {
        self.finish(&mut self.calling(n), n);
    }
}

#[test]
fn retpoline_is_counted_without_exits_and_branches_to_its_target() {
    for code in [&RETPOLINE[..], &LOOPING_RETPOLINE] {
        for new in [count, new] {
            let guest = Retpoline::with(code, &[new(THUNK)]);
            (0..10).for_each(|n| guest.call(n));
            let rig = &guest.rig;
            assert_eq!(rig.shown::<1>(guest.at), [0xe9]);
            assert_eq!(rig.own::<11>(guest.at)[..], code[..11]);
            rig.engine.take_out_records();
            let (hits, exits, tier) = rig.counted(0);
            assert_eq!((hits, tier), (10, Some(Tier::Optimised)));
            assert!(exits <= 2, "the first hit, and the one that opens the ring");
        }
    }
}

#[test]
fn retpoline_beside_a_plant_in_its_middle_is_recognised_by_the_original_bytes() {
    let store = format!("{THUNK}+0x6");
    let guest = Retpoline::with(&RETPOLINE, &[count(&store), count(THUNK)]);
    (0..10).for_each(|n| guest.call(n));
    assert_eq!(guest.rig.shown::<1>(guest.at), [0xe9]);
    assert_eq!(guest.rig.counted(0).0, 10);
    assert_eq!(guest.rig.counted(1).0, 10);
    assert_eq!(guest.rig.counted(1).1, 1);
}

#[test]
fn vcpu_at_any_step_of_a_retpoline_is_counted_once_when_the_jump_goes() {
    for steps in 0..9 {
        let guest = Retpoline::with(&RETPOLINE, &[count(THUNK)]);
        guest.call(1);
        let mut vcpu = guest.calling(7);
        assert_eq!(guest.rig.run(&mut vcpu, steps), Stepped::On);
        guest.rig.stands(&[&vcpu]);
        let paused = &guest.rig.paused;
        guest.rig.engine.set_optimising(paused, false).expect("set");
        guest.finish(&mut vcpu, 7);
        assert_eq!(guest.rig.counted(0).0, 2, "after {steps} steps");
    }
}

#[test]
fn jump_over_a_retpoline_goes_with_the_retpoline_and_stays_away() {
    let guest = Retpoline::with(&RETPOLINE, &[count(THUNK)]);
    guest.call(1);
    assert_eq!(guest.rig.shown::<1>(guest.at), [0xe9]);
    // jmp rax; int3; int3; int3
    let direct = [0xff, 0xe0, 0xcc, 0xcc, 0xcc];
    guest.rig.guest_writes(guest.at, &direct);
    (0..3).for_each(|n| guest.call(n));
    assert_eq!(guest.rig.shown(guest.at), [0xee, 0xe0, 0xcc, 0xcc, 0xcc]);
    assert_eq!(guest.rig.own(guest.at), direct);
    assert_eq!(guest.rig.counted(0).0, 4);
}
