//! Tests of the engine, with a guest of two megabytes and vCPUs that record requests.

mod arming;
mod changes;
mod detours;
mod handover;
mod hidden_plants;
mod hits;
mod in_place;
mod in_registers;
mod inject;
mod kernel_half;
mod landings;
mod modules;
mod optimise;
mod passing;
mod program_returns;
mod programs;
mod readers;
mod returns;
mod syscalls;
mod system;
mod tasks;
mod typed;
mod uprobes;
mod watch;
mod writes;

use std::sync::{Arc, Mutex};

use address::Gva;
use events::{Event, EventSink, Hit, Note, ProbeState, ProbeSummary, Return};
use introspect::PhysMemory as _;
use introspect::insn::{CpuidWords, Features};
use manifest::{Due, Injection, ProbeConfig, ProbeSpec};
use text::testing::{FakeMemory, FakePaused, FakeVcpu};
use text::{GuestMemory, PlantByte};

use super::engine_action::injecting;
use super::{Abilities, Engine, EngineAction};
use crate::resolve::synthetic::{SyntheticKernel, TEXT, TEXT_GPA};

/// Instructions known to the emulator: `push rbp; mov rbp, rsp; pop rbp; ret`
const PLAIN: [u8; 6] = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3];
/// `rdtsc; ret`: for the hardware to execute.
const RDTSC: [u8; 3] = [0x0f, 0x31, 0xc3];
/// RFLAGS.RF: no debug register fires at the next instruction.
const RESUME_FLAG: u64 = 1 << 16;

/// How the note of a kernel without types begins.
const UNTYPED: &str = "events show neither typed arguments nor tasks: ";

const MEMORY_BYTES: usize = 2 << 20;
const ROOT: u64 = 0x1000;
const UPPER: u64 = 0x2000;
const UPPER_DIRECTORY: u64 = 0x3000;
const TEXT_TABLE: u64 = 0x4000;
const LOWER: u64 = 0x5000;
const LOWER_DIRECTORY: u64 = 0x6000;
/// Memory for data, mapped one to one.
const DATA: u64 = 0x2_0000;
const STACK: u64 = 0x3_0000;
const TEXT_PAGES: u64 = 16;
/// Present, writable, accessed, dirty, a large page.
const LARGE_PAGE: u64 = 0xe3;
/// Present, accessed, dirty.
const READ_ONLY_PAGE: u64 = 0x61;
const TABLE: u64 = 0x23;
/// Of the page directory: where the kernel is linked.
const TEXT_ENTRY: u64 = 8;

#[derive(Debug, Default)]
struct Events(Mutex<Vec<Event>>);

impl EventSink for Events {
    fn event(&self, event: Event) {
        self.0.lock().expect("lock").push(event);
    }
}

struct Rig {
    engine: Engine,
    memory: Arc<FakeMemory>,
    paused: FakePaused,
    events: Arc<Events>,
}

/// Maps the kernel at [`TEXT`], and the first two megabytes one to one.
fn memory_of(kernel: &SyntheticKernel, loaded_at: u64, entry: u64) -> FakeMemory {
    let memory = FakeMemory::new(vec![0; MEMORY_BYTES]);
    let put = |at: u64, value: u64| memory.put(at, &value.to_le_bytes());
    put(ROOT, LOWER | TABLE);
    put(ROOT + 8 * 511, UPPER | TABLE);
    put(UPPER + 8 * 510, UPPER_DIRECTORY | TABLE);
    put(UPPER_DIRECTORY + 8 * entry, TEXT_TABLE | TABLE);
    for page in 0..TEXT_PAGES {
        put(
            TEXT_TABLE + 8 * page,
            (loaded_at + 0x1000 * page) | READ_ONLY_PAGE,
        );
    }
    put(LOWER, LOWER_DIRECTORY | TABLE);
    put(LOWER_DIRECTORY, LARGE_PAGE);
    memory.put(loaded_at, &kernel.loaded());
    memory
}

const ABILITIES: Abilities = Abilities {
    stealth: manifest::Stealth::Writes,
    plant: PlantByte::Port,
    debug_execute: true,
    debug_writes: true,
    breakpoint_before_fetch: false,
    int3_exits: false,
    int3_to_guest: true,
    holds_interrupts: true,
    interprets: false,
    features: Features::ALL,
    cpuid: NO_COPIES,
};

/// A processor without any CPUID feature: an instruction that could be copied is single-stepped.
const NO_COPIES: CpuidWords = CpuidWords {
    leaf1_ecx: 0,
    leaf1_edx: 0,
    leaf7_ebx: 0,
    leaf7_ecx: 0,
    leaf7_edx: 0,
    extended_ecx: 0,
    extended_edx: 0,
};

impl Rig {
    fn unarmed(
        memory: FakeMemory,
        kernel: &SyntheticKernel,
        probes: &[&str],
        abilities: Abilities,
    ) -> Self {
        let memory = Arc::new(memory);
        let events = Arc::new(Events::default());
        let specs: Vec<_> = probes
            .iter()
            .map(|probe| ProbeConfig::from(probe.parse::<ProbeSpec>().expect("a probe")))
            .collect();
        let engine = Engine::new(
            kernel.kernel(),
            &specs,
            Arc::clone(&memory) as Arc<dyn GuestMemory>,
            abilities,
            Arc::clone(&events) as Arc<dyn EventSink>,
        );
        Self {
            engine: engine.expect("the probes resolve"),
            paused: FakePaused::beside(&memory),
            memory,
            events,
        }
    }

    fn with(kernel: &SyntheticKernel, probes: &[&str], abilities: Abilities) -> Self {
        let memory = memory_of(kernel, TEXT_GPA, TEXT_ENTRY);
        let rig = Self::unarmed(memory, kernel, probes, abilities);
        rig.engine
            .arm_loaded(&rig.paused)
            .expect("they can be armed");
        rig
    }

    /// A kernel loaded at its link-time address, with `probes`.
    fn new(kernel: &SyntheticKernel, probes: &[&str]) -> Self {
        Self::with(kernel, probes, ABILITIES)
    }

    fn hits(&self) -> Vec<Hit> {
        let events = self.events.0.lock().expect("lock");
        let hits = events.iter().filter_map(|event| match event {
            Event::Hit(hit) => Some(hit.clone()),
            Event::Return(_) | Event::Note(_) | Event::Summary(_) => None,
        });
        hits.collect()
    }

    fn returns(&self) -> Vec<Return> {
        let events = self.events.0.lock().expect("lock");
        let returns = events.iter().filter_map(|event| match event {
            Event::Return(returned) => Some(returned.clone()),
            Event::Hit(_) | Event::Note(_) | Event::Summary(_) => None,
        });
        returns.collect()
    }

    /// The notes, without that of a kernel without types: none of these kernels has types.
    fn notes(&self) -> Vec<Note> {
        let notes = self.all_notes().into_iter();
        notes
            .filter(|note| !note.text.starts_with(UNTYPED))
            .collect()
    }

    fn all_notes(&self) -> Vec<Note> {
        let events = self.events.0.lock().expect("lock");
        let notes = events.iter().filter_map(|event| match event {
            Event::Note(note) => Some(note.clone()),
            Event::Hit(_) | Event::Return(_) | Event::Summary(_) => None,
        });
        notes.collect()
    }

    fn probe(&self, index: usize) -> ProbeSummary {
        self.engine.inventory().summaries().swap_remove(index)
    }

    fn states(&self) -> Vec<ProbeState> {
        self.engine
            .inventory()
            .summaries()
            .iter()
            .map(|probe| probe.state)
            .collect()
    }

    /// The byte that the guest sees at a link-time address.
    fn seen(&self, at: Gva) -> u8 {
        self.byte(gpa(at))
    }

    /// The byte that the guest sees at a guest-physical address.
    fn byte(&self, gpa: u64) -> u8 {
        self.memory.bytes()[usize::try_from(gpa).expect("small")]
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory
            .read(address::Gpa(at), &mut bytes)
            .expect("memory");
        u64::from_le_bytes(bytes)
    }
}

/// The guest-physical address of the link-time address `at`.
fn gpa(at: Gva) -> u64 {
    TEXT_GPA + (at.0 - TEXT.0)
}

/// An injection that makes each call of the function at `spec` return at once.
fn skipping(spec: &str) -> ProbeConfig<EngineAction> {
    injecting(&Injection {
        at: spec.parse().expect("a probe"),
        due: Due::Every(1),
        value: 0,
        comm: None,
    })
}

fn vcpu(rip: Gva) -> FakeVcpu {
    let mut vcpu = FakeVcpu::at(rip, ROOT);
    vcpu.regs.rsp = STACK;
    vcpu
}

/// A kernel with one function.
fn one(name: &str, code: &[u8]) -> (SyntheticKernel, Gva) {
    let mut kernel = SyntheticKernel::new();
    let at = kernel.function(name, code);
    (kernel, at)
}
