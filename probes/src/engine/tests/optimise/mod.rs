//! Jumps in the place of plants: the guest's results, and the probes' counts and records.
//!
//! The tests execute the guest instruction by instruction, from the bytes in guest memory: the guest's own text, injected jumps,
//! detours. A plant is a hit.

mod cpus;
mod early;
mod entries;
mod int3;
mod jumps;
mod programs;
mod random;
mod records;
mod returns;
mod sharing;
mod staying;
mod tasks;

use std::ops::Range;
use std::sync::Arc;

use address::{Gpa, Gva};
use events::Tier;
use introspect::insn::{Features, MAX_LENGTH_BYTES, decode};
use introspect::int3::HANDLER;
use introspect::{PhysMemory, Unreadable, walk};
use manifest::{Action, ProbeConfig, ProbeSpec};
use text::PlantByte;
use text::testing::{FakeMemory, FakeVcpu, Injected};
use text::{GuestMemory, Passed, Planter, Ran, Unwritable, Written, pass};

use super::{ABILITIES, PLAIN, Rig, STACK, UPPER_DIRECTORY, gpa, one, vcpu};
use crate::engine::EngineAction;
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::SyntheticKernel;

/// `mov eax, 1; lea eax, [rax + rdi]; ret`
const ROOMY: [u8; 9] = [0xb8, 1, 0, 0, 0, 0x8d, 0x04, 0x38, 0xc3];
/// The same behind the nop of an ftrace call: `nop; push rbp; lea eax, [rdi + 1]; pop rbp; ret`
const TRACED: [u8; 11] = [0x0f, 0x1f, 0x44, 0, 0, 0x55, 0x8d, 0x47, 1, 0x5d, 0xc3];
const RDTSC: [u8; 2] = [0x0f, 0x31];
const INT3: [u8; 1] = [0xcc];
const IRETQ: [u8; 2] = [0x48, 0xcf];
/// RFLAGS.IF.
const INTERRUPTS: u64 = 1 << 9;
/// The address of the interrupt table.
const IDT: u64 = 0x2_8000;
/// The result of `rdtsc`.
const TSC: u64 = 0x12_3456_789a;
/// The return address of calls, without code.
const RETURN: u64 = 0x5_0000;
/// The free page-directory entries above the image, apart from the first.
const CODE_ENTRY: u64 = UPPER_DIRECTORY + 8 * 10;
const DATA_ENTRY: u64 = CODE_ENTRY + 8;

/// RAM and detour memory, as the processor reads them.
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
            Some(detour) if gpa.0 >= text::testing::DETOUR_GPA => detour,
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

fn count(name: &str) -> ProbeConfig<EngineAction> {
    ProbeConfig {
        action: Action::Count.into(),
        ..new(name)
    }
}

fn new(name: &str) -> ProbeConfig<EngineAction> {
    let spec = format!("kprobe:{name}").parse::<ProbeSpec>();
    ProbeConfig::from(spec.expect("a probe")).with_action(EngineAction::default())
}

/// The result of a vCPU's step.
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

    /// A guest with functions, and probes that report their hits.
    fn recording(kernel: &SyntheticKernel, names: &[&str]) -> Self {
        let rig = Self::with(kernel, &[], ABILITIES);
        rig.engine.set_optimising(&rig.paused, true).expect("set");
        let new: Vec<_> = names.iter().map(|name| new(name)).collect();
        rig.engine.register(&rig.paused, &new).expect("registered");
        rig
    }

    /// Executes the instruction at the vCPU's RIP, from the bytes in guest memory.
    fn step(&self, vcpu: &mut FakeVcpu) -> Stepped {
        if vcpu.regs.rip == RETURN {
            return Stepped::Returned;
        }
        let bare = Arc::new(Bare {
            ram: Arc::clone(&self.memory),
            detour: self.paused.detour(),
        });
        let rip = Gva(vcpu.regs.rip);
        let table = self.engine.hits.plants.table.load_full();
        if table
            .debug
            .iter()
            .flatten()
            .any(|used| used.plant().is_some_and(|plant| plant.at == rip))
        {
            let run = |_: &mut FakeVcpu, _: text::To<'_>| -> Result<Ran, _> {
                panic!("nothing here is executed in place")
            };
            let engine = &self.engine;
            let hit = engine
                .paused_hits
                .on_paused_debug_hit(vcpu, &self.paused, rip, run);
            hit.expect("handled");
            return Stepped::On;
        }
        let found = walk(&*bare, &vcpu.state.paging, rip).expect("mapped code");
        let mut bytes = [0; MAX_LENGTH_BYTES];
        bare.read(found.gpa, &mut bytes).expect("memory");
        if bytes[0] == PlantByte::Port.value() {
            match self.engine.hits.on_hit(vcpu, rip).expect("handled") {
                HitOutcome::Resume => (),
                HitOutcome::NeedsPause => self.engine_alone(vcpu, rip),
                HitOutcome::NotOurs => panic!("no plant at {rip}"),
            }
            if let Some(injected) = vcpu.injected.pop() {
                assert_eq!(injected, Injected::Breakpoint(rip));
                self.take_breakpoint(vcpu);
            }
            return Stepped::On;
        }
        let decoded = decode(&bytes, rip).expect("an instruction");
        if decoded.bytes() == INT3 {
            self.take_breakpoint(vcpu);
            return Stepped::On;
        }
        if decoded.bytes() == IRETQ {
            return_from(self, vcpu.regs.rsp, vcpu);
            return Stepped::On;
        }
        if decoded.bytes() == RDTSC {
            (vcpu.regs.rax, vcpu.regs.rdx) = (TSC & 0xffff_ffff, TSC >> 32);
            vcpu.regs.rip = decoded.next().0;
            return Stepped::On;
        }
        let memory: Arc<dyn GuestMemory> = bare;
        let planter = Planter::new(Arc::clone(&memory), PlantByte::Port);
        let passed = pass(
            vcpu,
            memory.as_ref(),
            &planter,
            Features::ALL,
            None,
            &decoded,
        );
        assert_eq!(passed.expect("executed"), Passed::Emulated, "{decoded:?}");
        Stepped::On
    }

    /// Delivers #BP for an `int3`: through the interrupt table to the guest's handler.
    fn take_breakpoint(&self, vcpu: &mut FakeVcpu) {
        vcpu.regs.rip += 1;
        vcpu.regs.rsp = frame(self, vcpu);
        vcpu.regs.rflags &= !INTERRUPTS;
        let handler = self.engine.kernel().symbols().address_of(HANDLER);
        vcpu.regs.rip = handler.expect("the guest has a handler").0;
    }

    fn engine_alone(&self, vcpu: &mut FakeVcpu, rip: Gva) {
        let run = |_: &mut FakeVcpu, _: text::To<'_>| -> Result<Ran, _> {
            panic!("nothing here is executed in place")
        };
        let hit = self
            .engine
            .paused_hits
            .on_paused_hit(vcpu, &self.paused, rip, run)
            .expect("handled");
        assert_eq!(hit, HitOutcome::Resume);
    }

    /// Executes up to `steps` instructions of the vCPU, or up to its return.
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
        assert_eq!(self.run(&mut vcpu, 1000), Stepped::Returned);
        assert_eq!((vcpu.regs.rsp, vcpu.regs.rflags), (STACK, FLAGS));
        vcpu.regs.rax
    }

    /// A vCPU that has just called the function at `at`.
    fn calling(&self, at: Gva, argument: u64, stack: u64) -> FakeVcpu {
        let mut vcpu = vcpu(at);
        vcpu.regs.rsp = stack - 8;
        vcpu.regs.rdi = argument;
        vcpu.regs.rflags = FLAGS;
        (vcpu.sregs.idt.base, vcpu.sregs.idt.limit) = (IDT, 0xfff);
        self.memory.put(stack - 8, &RETURN.to_le_bytes());
        vcpu
    }

    /// Pauses these vCPUs at their RIPs.
    fn stands(&self, vcpus: &[&FakeVcpu]) {
        let rips = vcpus.iter().map(|vcpu| Gva(vcpu.regs.rip)).collect();
        *self.paused.rips.lock().expect("lock") = rips;
    }

    /// The guest writes to its text.
    fn guest_writes(&self, at: Gva, data: &[u8]) {
        let gpa = Gpa(gpa(at));
        let written = if self.engine.writes.must_pause_for_write(gpa, data) {
            self.engine
                .writes
                .on_paused_guest_write(&self.paused, gpa, data)
        } else {
            self.engine.writes.on_guest_write(gpa, data)
        };
        if written.expect("handled") == Written::NotOurs {
            // The page has no plant, and is not read-only.
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
        self.engine
            .inventory()
            .read(at, &mut bytes)
            .expect("memory");
        bytes
    }

    fn counted(&self, index: usize) -> (u64, u64, Option<Tier>) {
        let probe = self.probe(index);
        (probe.hits, probe.exits, probe.tier)
    }
}

/// The flags of each call; no function of the tests changes them.
const FLAGS: u64 = 0x203;

/// The region, and its cells.
const REGION: Gva = Gva(0xffff_ffff_8140_0000);
const CELLS: Gva = Gva(0xffff_ffff_8160_0000);

fn one_roomy() -> (SyntheticKernel, Gva) {
    one("probed", &ROOMY)
}

/// The same, on a processor whose number is 3: `gs` points to address 0.
fn roomy_on_3() -> (SyntheticKernel, Gva) {
    let (mut kernel, at) = one_roomy();
    kernel.function("cpu_number", &3u32.to_le_bytes());
    (kernel, at)
}

/// A booted kernel, with one function behind a switched-off ftrace call.
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
/// The address of the first function.
const AT: u64 = 0xffff_ffff_8100_0000;

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
