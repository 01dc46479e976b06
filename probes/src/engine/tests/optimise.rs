//! Jumps in the place of plants: what the guest computes, and what is counted.
//!
//! The guest is executed here instruction by instruction, from the bytes that its memory shows: its own text, jumps of
//! ours, detours. A plant is a hit.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use introspect::insn::{Features, MAX_LENGTH_BYTES, decode};
use introspect::{Gpa, Gva, PhysMemory, Unreadable, walk};
use proptest::prelude::*;

use super::{ABILITIES, PLAIN, Rig, STACK, UPPER_DIRECTORY, gpa, vcpu};
use crate::engine::trap::HitOutcome;
use crate::engine::{Action, NewProbe};
use crate::guest::fake::{FakeMemory, FakeVcpu};
use crate::guest::{GuestMemory, Ran, Unwritable};
use crate::hit::{Passed, pass};
use crate::plant::{Planter, Written};
use crate::resolve::synthetic::SyntheticKernel;
use crate::{PlantByte, ProbeSpec, Tier};

/// `mov eax, 1; lea eax, [rax + rdi]; ret`
const ROOMY: [u8; 9] = [0xb8, 1, 0, 0, 0, 0x8d, 0x04, 0x38, 0xc3];
/// The same behind what is left of an ftrace call: `nop; push rbp; lea eax, [rdi + 1]; pop rbp; ret`
const TRACED: [u8; 11] = [0x0f, 0x1f, 0x44, 0, 0, 0x55, 0x8d, 0x47, 1, 0x5d, 0xc3];
/// Where a call returns to: nothing is there.
const RETURN: u64 = 0x5_0000;
/// The entries behind the image's that are free, but for the one that is left out.
const CODE_ENTRY: u64 = UPPER_DIRECTORY + 8 * 10;
const DATA_ENTRY: u64 = CODE_ENTRY + 8;

/// All memory there is, as the processor sees it.
#[derive(Debug)]
struct Bare {
    ram: Arc<FakeMemory>,
    detour: Option<Arc<FakeMemory>>,
}

impl PhysMemory for Bare {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        match &self.detour {
            Some(detour) => self.ram.read(gpa, buf).or_else(|_| detour.read(gpa, buf)),
            None => self.ram.read(gpa, buf),
        }
    }
}

impl Bare {
    fn owner(&self, gpa: Gpa) -> &FakeMemory {
        match &self.detour {
            Some(detour) if gpa.0 >= crate::guest::fake::DETOUR_GPA => detour,
            _ => &self.ram,
        }
    }
}

impl GuestMemory for Bare {
    fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unwritable> {
        self.owner(gpa).write(gpa, bytes)
    }

    fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable> {
        self.owner(gpa).compare_exchange(gpa, old, new)
    }

    fn ranges(&self) -> Vec<Range<Gpa>> {
        self.ram.ranges()
    }
}

fn count(name: &str) -> NewProbe {
    NewProbe {
        action: Action::Count,
        ..new(name)
    }
}

fn new(name: &str) -> NewProbe {
    format!("kprobe:{name}")
        .parse::<ProbeSpec>()
        .expect("a probe")
        .into()
}

/// How a step of a vCPU ended.
#[derive(Debug, PartialEq, Eq)]
enum Stepped {
    On,
    Returned,
}

impl Rig {
    /// A guest with a function, and a probe that counts.
    fn counting(kernel: &SyntheticKernel, names: &[&str]) -> Self {
        let rig = Self::with(kernel, &[], ABILITIES);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let new: Vec<_> = names.iter().map(|name| count(name)).collect();
        rig.engine.register(&rig.paused, &new).expect("registered");
        rig
    }

    /// The vCPU executes what memory shows at its RIP.
    fn step(&self, vcpu: &mut FakeVcpu) -> Stepped {
        if vcpu.regs.rip == RETURN {
            return Stepped::Returned;
        }
        let bare = Arc::new(Bare {
            ram: Arc::clone(&self.memory),
            detour: self.paused.detour(),
        });
        let rip = Gva(vcpu.regs.rip);
        let found = walk(&*bare, &vcpu.state.paging, rip).expect("mapped code");
        let mut bytes = [0; MAX_LENGTH_BYTES];
        bare.read(found.gpa, &mut bytes).expect("memory");
        if bytes[0] == PlantByte::Port.value() {
            match self.engine.on_hit(vcpu, rip).expect("handled") {
                HitOutcome::Resume => (),
                HitOutcome::NeedsPause => self.engine_alone(vcpu, rip),
                HitOutcome::NotOurs => panic!("no plant at {rip}"),
            }
            return Stepped::On;
        }
        let decoded = decode(&bytes, rip).expect("an instruction");
        let memory: Arc<dyn GuestMemory> = bare;
        let planter = Planter::new(Arc::clone(&memory), PlantByte::Port);
        let passed = pass(vcpu, memory.as_ref(), &planter, Features::ALL, &decoded);
        assert_eq!(passed.expect("executed"), Passed::Emulated, "{decoded:?}");
        Stepped::On
    }

    fn engine_alone(&self, vcpu: &mut FakeVcpu, rip: Gva) {
        let run = |_: &mut FakeVcpu, _: crate::guest::To<'_>| -> Result<Ran, _> {
            panic!("nothing here is executed in place")
        };
        let hit = self
            .engine
            .on_paused_hit(vcpu, &self.paused, rip, run)
            .expect("handled");
        assert_eq!(hit, HitOutcome::Resume);
    }

    /// Lets the vCPU execute so many instructions, or up to its return.
    fn run(&self, vcpu: &mut FakeVcpu, steps: usize) -> Stepped {
        for _ in 0..steps {
            if self.step(vcpu) == Stepped::Returned {
                return Stepped::Returned;
            }
        }
        Stepped::On
    }

    /// Calls a function of one argument.
    fn call(&self, at: Gva, argument: u64) -> u64 {
        let mut vcpu = self.calling(at, argument, STACK);
        assert_eq!(self.run(&mut vcpu, 100), Stepped::Returned);
        assert_eq!((vcpu.regs.rsp, vcpu.regs.rflags), (STACK, FLAGS));
        vcpu.regs.rax
    }

    /// A vCPU that has just called it.
    fn calling(&self, at: Gva, argument: u64, stack: u64) -> FakeVcpu {
        let mut vcpu = vcpu(at);
        vcpu.regs.rsp = stack - 8;
        vcpu.regs.rdi = argument;
        vcpu.regs.rflags = FLAGS;
        self.memory.put(stack - 8, &RETURN.to_le_bytes());
        vcpu
    }

    /// The guest writes to its text.
    fn guest_writes(&self, at: Gva, data: &[u8]) {
        let gpa = Gpa(gpa(at));
        self.engine
            .make_room_for_write(&self.paused, gpa, data)
            .expect("made room");
        let written = self.engine.on_guest_write(gpa, data).expect("written");
        if written == Written::NotOurs {
            // Nothing is planted on the page, and it is not read-only.
            self.memory.put(gpa.0, data);
        }
    }

    fn shown<const N: usize>(&self, at: Gva) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read(Gpa(gpa(at)), &mut bytes).expect("memory");
        bytes
    }

    fn own<const N: usize>(&self, at: Gva) -> [u8; N] {
        let mut bytes = [0; N];
        let at = crate::engine::At::Physical(Gpa(gpa(at)));
        self.engine.read(at, &mut bytes).expect("memory");
        bytes
    }

    fn counted(&self, index: usize) -> (u64, u64, Option<Tier>) {
        let probe = self.probe(index);
        (probe.hits, probe.exits, probe.tier)
    }
}

/// None of these functions changes them.
const FLAGS: u64 = 0x203;

/// The region, and its cells.
const REGION: Gva = Gva(0xffff_ffff_8140_0000);
const CELLS: Gva = Gva(0xffff_ffff_8160_0000);

fn one_roomy() -> (SyntheticKernel, Gva) {
    super::one("probed", &ROOMY)
}

/// A kernel that has booted, with one function behind an ftrace call that is off.
fn traced() -> (Rig, Gva, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function("traced", &TRACED);
    let copy = kernel.function("copy_from_kernel_nofault", &PLAIN);
    let booted = kernel.function("rest_init", &PLAIN);
    kernel.ftrace_calls(&[at]);
    let rig = Rig::counting(&kernel, &["traced"]);
    assert_eq!(rig.shown(at), [0x0f, 0x1f, 0x44, 0, 0], "it boots");
    rig.call(booted, 0);
    (rig, at, copy)
}

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

    // Where the processor knows of it.
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
    // A task that was interrupted before the plant when there was no jump.
    assert_eq!(rig.call(behind, 1), 2);
    assert_eq!(rig.counted(0).0, 11);
    assert_eq!(rig.own(at), TRACED);
}

#[test]
fn the_kernel_reads_its_own_bytes_and_patches_them() {
    let (rig, at, copy) = traced();
    // It compares before it patches.
    let mut vcpu = rig.calling(copy, 0x2_0000, STACK);
    (vcpu.regs.rsi, vcpu.regs.rdx) = (at.0, 5);
    let outcome = rig.engine.on_hit(&mut vcpu, copy).expect("handled");
    assert_eq!(outcome, HitOutcome::NeedsPause);
    let mut seen = [0; 6];
    rig.engine
        .on_paused_hit(&mut vcpu, &rig.paused, copy, |_, _| {
            seen = rig.shown(at);
            Ok(Ran::At(Gva(RETURN)))
        })
        .expect("handled");
    assert_eq!(seen[..5], TRACED[..5]);
    assert_eq!(rig.shown::<1>(at), [0xe9]);

    // int3, the rest, and the first byte; each is what it then sees.
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
    // And back.
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
    // What it has read there and stores back.
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
fn whatever_needs_an_exit_makes_the_jump_go() {
    type Change = fn(&Rig);
    let changes: [(&str, Change, Change); 4] = [
        (
            "a probe beside it",
            |rig| {
                let beside = [new("probed")];
                rig.engine.register(&rig.paused, &beside).expect("done");
            },
            |rig| {
                let last = rig.engine.ids()[1];
                rig.engine.unregister(&rig.paused, &[last]).expect("done");
            },
        ),
        (
            "a return probe beside it",
            |rig| {
                let spec: ProbeSpec = "kretprobe:probed".parse().expect("a probe");
                rig.engine
                    .register(&rig.paused, &[spec.into()])
                    .expect("done");
            },
            |rig| {
                let last = rig.engine.ids()[1];
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
                let id = rig.engine.ids()[0];
                rig.engine
                    .set_enabled(&rig.paused, id, false)
                    .expect("done");
                assert_eq!(rig.call(Gva(AT), 0), 1);
                rig.engine.set_enabled(&rig.paused, id, true).expect("done");
                rig.engine.set_optimising(&rig.paused, false).expect("set");
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
    }
}

/// Where the first function is.
const AT: u64 = 0xffff_ffff_8100_0000;

#[test]
fn what_cannot_be_jumped_over_says_why() {
    for (code, why) in [
        (
            &PLAIN[..],
            "`push rbp` has fewer than the 5 bytes of a jump",
        ),
        (
            // mov eax, [rip + 2]; ret
            &[0x8b, 0x05, 2, 0, 0, 0, 0xc3],
            "`mov eax, [0xffffffff81000008]` would not do the same in a detour",
        ),
    ] {
        let (kernel, at) = super::one("probed", code);
        let rig = Rig::counting(&kernel, &["probed"]);
        for _ in 0..2 {
            rig.call(at, 0x2_0000);
        }
        let probe = rig.probe(0);
        assert_eq!((probe.hits, probe.exits), (2, 2));
        assert_eq!(probe.unoptimised.as_deref(), Some(why));
        assert!(rig.paused.detour().is_none());
    }
    // What only a look at the whole kernel tells.
    let copied = "this code is copied or patched by the kernel in ways of its own";
    let branched =
        "something may branch to 0xffffffff81000001, in the middle of what a jump would replace";
    // mov eax, 1; ret; jmp into the first one
    let overlapping = [0xb8, 1, 0, 0, 0, 0xc3, 0xeb, 0xf9];
    for (name, code, why) in [
        ("ftrace_caller", &ROOMY[..], copied),
        ("probed", &overlapping, branched),
    ] {
        let (kernel, at) = super::one(name, code);
        let rig = Rig::counting(&kernel, &[name]);
        rig.call(at, 0);
        assert_eq!(rig.shown::<1>(at), [0xee], "{name}");
        assert_eq!(rig.probe(0).unoptimised.as_deref(), Some(why));
    }
    // Nobody counts.
    let (kernel, at) = one_roomy();
    let rig = Rig::new(&kernel, &["kprobe:probed"]);
    rig.call(at, 0);
    assert_eq!(rig.shown::<1>(at), [0xee]);
    assert_eq!(rig.probe(0).unoptimised, None);
}

#[test]
fn who_is_in_a_detour_when_the_jump_goes_is_counted() {
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

/// An interrupt's frame below the stack pointer, as the processor aligns it.
fn frame(rig: &Rig, vcpu: &FakeVcpu) -> u64 {
    let at = (vcpu.regs.rsp & !15) - 40;
    let words = [vcpu.regs.rip, 0x10, vcpu.regs.rflags, vcpu.regs.rsp, 0x18];
    for (index, word) in (0..).zip(words) {
        rig.memory.put(at + 8 * index, &word.to_le_bytes());
    }
    at
}

fn return_from(rig: &Rig, at: u64, vcpu: &mut FakeVcpu) {
    vcpu.regs.rip = rig.word(at);
    vcpu.regs.rflags = rig.word(at + 16);
    vcpu.regs.rsp = rig.word(at + 24);
}

/// What the vCPU itself does when it heeds a move.
fn heed(rig: &Rig, vcpu: &mut FakeVcpu) {
    if let Some(destination) = rig.paused.moves().get(&vcpu.regs.rip) {
        vcpu.regs.rip = destination.rip;
        if destination.pops_flags {
            vcpu.regs.rflags = rig.word(vcpu.regs.rsp);
            vcpu.regs.rsp += 8;
        }
    }
}

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
            rig.engine.disarm_all(&rig.paused).expect("disarmed");
            assert!(rig.paused.detour().is_none() && rig.notes().is_empty());
            assert_eq!((rig.word(CODE_ENTRY), rig.word(DATA_ENTRY)), (0, 0));
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
    assert_eq!(rig.notes().len(), 1);
    assert_eq!(rig.shown(at), ROOMY);
    assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
    assert_eq!(vcpu.regs.rax, 5);
    // Gone from there, it goes with the next turn of the knob.
    rig.memory.put(torn, &[0; 8]);
    rig.engine.set_armed(&rig.paused, true).expect("armed");
    rig.engine.disarm_all(&rig.paused).expect("disarmed");
    assert!(rig.paused.detour().is_none());
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

#[derive(Clone, Debug)]
enum Op {
    Call(usize, u64),
    /// A task begins a call and is interrupted after so many instructions.
    Begin(usize, u64, usize),
    /// The task that was interrupted first goes on.
    Finish,
    Optimise(bool),
    /// A probe that tells its hits, beside the one that counts; or away again.
    Beside(usize, bool),
    Enable(usize, bool),
    /// The knob, off and on again.
    Knob,
    /// The guest puts another value into a `mov`.
    Write(usize, u8),
}

const FUNCTIONS: usize = 4;

fn op() -> impl Strategy<Value = Op> {
    let function = 0..FUNCTIONS;
    prop_oneof![
        6 => (function.clone(), 0..9_u64).prop_map(|(f, n)| Op::Call(f, n)),
        4 => (function.clone(), 0..9_u64, 0..9_usize).prop_map(|(f, n, s)| Op::Begin(f, n, s)),
        4 => Just(Op::Finish),
        3 => any::<bool>().prop_map(Op::Optimise),
        2 => (function.clone(), any::<bool>()).prop_map(|(f, on)| Op::Beside(f, on)),
        2 => (function.clone(), any::<bool>()).prop_map(|(f, on)| Op::Enable(f, on)),
        1 => Just(Op::Knob),
        2 => (function, any::<u8>()).prop_map(|(f, value)| Op::Write(f, value)),
    ]
}

/// A task that has been interrupted: its registers, its frame, what it will return, and of which function.
struct Task {
    vcpu: FakeVcpu,
    frame: u64,
    returns: u64,
    function: usize,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Jumps come and go: the guest computes what it would without, and each call is counted once while its probe is
    /// enabled.
    #[test]
    fn optimising_changes_neither_results_nor_counts(ops in prop::collection::vec(op(), 1..60)) {
        let mut kernel = SyntheticKernel::new();
        let at: Vec<Gva> = (0..FUNCTIONS)
            .map(|n| kernel.function(&format!("roomy{n}"), &ROOMY))
            .collect();
        let rig = Rig::with(&kernel, &[], ABILITIES);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let probes: Vec<_> = (0..FUNCTIONS).map(|n| count(&format!("roomy{n}"))).collect();
        let ids = rig.engine.register(&rig.paused, &probes).expect("registered");
        rig.call(at[0], 0);
        prop_assert_eq!(rig.shown::<1>(at[0]), [0xe9]);
        let mut constants = [1_u64; FUNCTIONS];
        let (mut least, mut most) = ([1, 0, 0, 0], [1, 0, 0, 0]);
        let mut enabled = [true; FUNCTIONS];
        let mut beside = [None; FUNCTIONS];
        let mut tasks: Vec<Task> = Vec::new();
        let finish = |task: Task, rig: &Rig| {
            let Task { mut vcpu, frame, returns, .. } = task;
            return_from(rig, frame, &mut vcpu);
            assert_eq!(rig.run(&mut vcpu, 100), Stepped::Returned);
            assert_eq!((vcpu.regs.rax, vcpu.regs.rflags), (returns, FLAGS));
        };
        for op in ops.into_iter().chain([Op::Knob]) {
            match op {
                Op::Call(f, n) => {
                    prop_assert_eq!(rig.call(at[f], n), n + constants[f]);
                    least[f] += u64::from(enabled[f]);
                    most[f] += u64::from(enabled[f]);
                }
                Op::Begin(f, n, steps) if tasks.len() < 4 => {
                    let stack = STACK - 0x400 * (1 + tasks.len() as u64);
                    let stack = (0..4)
                        .map(|i| stack - 0x2000 * i)
                        .find(|stack| tasks.iter().all(|task| task.frame.abs_diff(*stack) > 0x200))
                        .expect("a free stack");
                    let mut vcpu = rig.calling(at[f], n, stack);
                    if rig.run(&mut vcpu, steps) == Stepped::On {
                        let frame = frame(&rig, &vcpu);
                        let returns = n + constants[f];
                        tasks.push(Task { vcpu, frame, returns, function: f });
                    }
                    least[f] += u64::from(enabled[f]);
                    most[f] += u64::from(enabled[f]);
                }
                Op::Begin(..) => (),
                Op::Finish if tasks.is_empty() => (),
                Op::Finish => finish(tasks.remove(0), &rig),
                Op::Optimise(on) => rig.engine.set_optimising(&rig.paused, on).expect("set"),
                Op::Beside(f, true) if beside[f].is_none() => {
                    let new = [new(&format!("roomy{f}"))];
                    let ids = rig.engine.register(&rig.paused, &new).expect("registered");
                    beside[f] = Some(ids[0]);
                }
                Op::Beside(f, _) => {
                    if let Some(id) = beside[f].take() {
                        rig.engine.unregister(&rig.paused, &[id]).expect("removed");
                    }
                }
                Op::Enable(f, on) => {
                    // A call that is under way may be counted at either side of it.
                    let under_way = tasks.iter().filter(|task| task.function == f).count() as u64;
                    least[f] = least[f].saturating_sub(under_way);
                    most[f] += under_way;
                    rig.engine.set_enabled(&rig.paused, ids[f], on).expect("set");
                    enabled[f] = on;
                }
                Op::Knob => {
                    for task in &tasks {
                        least[task.function] = least[task.function].saturating_sub(1);
                        most[task.function] += 1;
                    }
                    rig.engine.disarm_all(&rig.paused).expect("disarmed");
                    prop_assert!(rig.paused.detour().is_none());
                    for (f, at) in at.iter().enumerate() {
                        prop_assert_eq!(u64::from(rig.shown::<5>(*at)[1]), constants[f]);
                    }
                    prop_assert_eq!(rig.shown::<1>(at[0]), [ROOMY[0]]);
                    rig.engine.set_armed(&rig.paused, true).expect("armed");
                }
                Op::Write(f, value) => {
                    for task in tasks.drain(..) {
                        finish(task, &rig);
                    }
                    rig.guest_writes(at[f].wrapping_add(1), &[value]);
                    constants[f] = value.into();
                }
            }
        }
        for task in tasks {
            finish(task, &rig);
        }
        let summaries = rig.engine.summaries();
        for f in 0..FUNCTIONS {
            let hits = summaries[f].hits;
            prop_assert!((least[f]..=most[f]).contains(&hits), "{}: {} of {}..={}", f, hits, least[f], most[f]);
        }
    }
}
