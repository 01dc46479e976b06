//! The engine: the trap handler of a machine with probes.
//!
//! ```text
//!  vCPU at a plant ── exit ──▶ on_trap ── look up ──▶ count, report ──▶ emulate ── Resume ──▶ guest
//!                                │                                        │ impossible: a copy, or
//!                                │ no plant: Reinject                     ▼
//!                                ▼                  on_exclusive: original byte back, execute, plant again
//!                              guest, device
//! ```
//!
//! Threads: `on_trap` runs on the threads of all vCPUs at once, and takes no lock under which a thread waits. vCPUs look
//! plants up in an immutable value ([`Table`]), without a lock. Plants change only with all other vCPUs paused: in
//! `on_exclusive`, or on a control thread.

mod arm;
mod boundaries;
mod call_sites;
mod crash;
mod debug_hits;
mod edits;
mod entries;
mod handover;
mod hits;
mod in_place;
mod inject;
mod interest;
mod inventory;
mod jumps;
mod landings;
mod located;
mod milestones;
mod modules;
mod optimise;
mod paused_hits;
mod placing;
mod programs;
mod reader_copy;
mod readers;
mod records;
mod register;
mod relocate;
mod return_sites;
mod stand_in;
#[cfg(test)]
mod tests;
mod trap;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use detour::Detour;
use events::{Crash, Event, EventSink, Hex, Hit, Note, ProbeSummary, Registers, Return};
use introspect::Gva;
use introspect::insn::{CpuidWords, Features};
use text::{GuestMemory, PlantByte, Planter};

use crate::ResolveError;
use crate::hit::Table;
use crate::kernel::Kernel;
use crate::registry::{Probe, ProbeId};
use crate::returns::{Calls, Instance};

pub use arm::ArmError;
use handover::Successor;
pub use inventory::{At, ProbeRecord, ReadError};
use located::{Reached, Whereabouts};
use modules::Watched;
use optimise::Optimised;
use records::Records;
pub use register::{Action, NewProbe, Prepared, RegisterError};
use return_sites::ReturnSites;

/// A panic of the guest's kernel.
#[derive(Clone, Debug)]
pub(crate) struct Panicked {
    /// The format string of the panic's message.
    pub(crate) message: String,
    pub(crate) crash: Crash,
    /// The time of the panic; `None` if the guest has started another kernel since.
    pub(crate) at: Option<Instant>,
}

/// The host's abilities that the engine uses, and the features of the guest's processor.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// The byte of a plant.
    pub plant: PlantByte,
    /// Execution breakpoints in debug registers stop the guest's kernel.
    pub debug_execute: bool,
    /// An `int3` of the guest's kernel exits, if requested.
    pub int3_exits: bool,
    /// An `int3` of the guest's kernel goes to the guest's own handler, unless an exit is requested.
    pub int3_to_guest: bool,
    /// Interrupts can be held back while one vCPU runs alone.
    pub holds_interrupts: bool,
    /// The features of the guest's processor.
    pub features: Features,
    /// The same features as CPUID words: they decide whether a copy of an instruction may run.
    pub cpuid: CpuidWords,
}

/// The trap handler of a machine with probes: the probes, their plants, and the state of the guest's kernel.
#[derive(Debug)]
pub struct Engine {
    kernel: Kernel,
    memory: Arc<dyn GuestMemory>,
    planter: Planter,
    abilities: Abilities,
    table: ArcSwap<Table>,
    /// In the order of registration. Replaced with the vCPUs paused.
    probes: ArcSwap<Vec<Arc<Probe>>>,
    /// The number of probes with each interest.
    counted: interest::Counted,
    next_id: AtomicU64,
    /// The knob: off removes every plant, and keeps each probe's own switch.
    armed: AtomicBool,
    milestones: Vec<Arc<Probe>>,
    /// Calls followed to their return.
    calls: Calls,
    return_sites: ReturnSites,
    /// Ended tasks that are still on their vCPU: see [`Engine::end_task`].
    dying: Mutex<BTreeMap<usize, u64>>,
    /// vCPUs that resume with their present registers after a pause: see [`Engine::resuming`].
    resuming: Mutex<BTreeSet<usize>>,
    /// Withdrawn plants without a debug register: see [`Engine::let_be_read`].
    unwatched: Mutex<Vec<Gva>>,
    /// The location of the running kernel, once known. Unset when another kernel takes over.
    located: Whereabouts,
    boot_patched: Reached,
    /// The kernel has freed its init text.
    init_freed: Reached,
    successor: Successor,
    /// Whether a note has reported a reader that did not return in time.
    readers_lost: AtomicBool,
    modules: Watched,
    detour: Detour,
    optimised: Optimised,
    /// The number of `int3`s returned to the guest: see [`Engine::int3_exits`].
    int3_exits: AtomicU64,
    /// The number of guest writes that exited: see [`Engine::guest_writes`].
    guest_writes: AtomicU64,
    records: Records,
    sink: Arc<dyn EventSink>,
    started: OnceLock<Instant>,
    panicked: Mutex<Option<Panicked>>,
}

impl Engine {
    /// Resolves the probes. Nothing is planted yet.
    ///
    /// # Errors
    ///
    /// If a probe specification cannot be resolved.
    pub fn new(
        kernel: Kernel,
        probes: &[NewProbe],
        memory: Arc<dyn GuestMemory>,
        abilities: Abilities,
        sink: Arc<dyn EventSink>,
    ) -> Result<Self, ResolveError> {
        let milestones = milestones::placed(&kernel);
        let engine = Self {
            kernel,
            planter: Planter::new(Arc::clone(&memory), abilities.plant),
            memory,
            abilities,
            table: ArcSwap::default(),
            probes: ArcSwap::default(),
            counted: interest::Counted::default(),
            next_id: AtomicU64::new(1),
            armed: AtomicBool::new(true),
            milestones,
            calls: Calls::default(),
            return_sites: ReturnSites::default(),
            dying: Mutex::default(),
            resuming: Mutex::default(),
            unwatched: Mutex::default(),
            located: Whereabouts::default(),
            boot_patched: Reached::default(),
            init_freed: Reached::default(),
            successor: Successor::default(),
            readers_lost: AtomicBool::new(false),
            modules: Watched::default(),
            detour: Detour::default(),
            optimised: Optimised::default(),
            int3_exits: AtomicU64::new(0),
            guest_writes: AtomicU64::new(0),
            records: Records::default(),
            sink,
            started: OnceLock::new(),
            panicked: Mutex::new(None),
        };
        let resolved = engine.resolve_all(probes, None)?;
        resolved
            .iter()
            .for_each(|probe| engine.count_interest(probe));
        engine.probes.store(Arc::new(resolved));
        Ok(engine)
    }

    /// The probed kernel.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Starts the clock of timestamps: the guest's first instruction is about to run.
    pub fn start_clock(&self) {
        self.started.get_or_init(Instant::now);
    }

    /// Surveys the kernel's code, if a jump may replace a plant later. The survey takes up to a second, and would otherwise
    /// be made with the vCPUs paused. Called at the start, on a thread of its own.
    pub(crate) fn survey(&self) {
        let probes = self.probes.load();
        if self.is_optimising() && probes.iter().any(|probe| probe.kept_by_detour().is_some()) {
            let _ = self.kernel.survey();
        }
    }

    /// The number of `int3`s that exit and are returned to the guest, if plants are port writes: `int3`s of the guest under
    /// a plant, and `int3`s of a vCPU that runs alone. If KVM cannot leave `int3`s to the guest
    /// ([`HostFacts::int3_reaches_guest`](vmm::HostFacts::int3_reaches_guest)), each `int3` counts. No probe counts these
    /// exits.
    #[must_use]
    pub fn int3_exits(&self) -> u64 {
        self.int3_exits.load(Ordering::Relaxed)
    }

    /// The number of exits for guest writes to read-only pages: pages with plants, from `rest_init` on the whole text, and the
    /// detour region. A kernel that patches itself while booting causes most of them. No probe counts these exits.
    #[must_use]
    pub fn guest_writes(&self) -> u64 {
        self.guest_writes.load(Ordering::Relaxed)
    }

    /// The state and the counters of each probe, in the order of registration.
    #[must_use]
    pub fn summaries(&self) -> Vec<ProbeSummary> {
        self.told(|_| true)
            .iter()
            .map(|probe| probe.summary())
            .collect()
    }

    /// The wanted probes for a report. If a glob in a module has matches, the matches replace the glob.
    fn told(&self, is_wanted: impl Fn(ProbeId) -> bool) -> Vec<Arc<Probe>> {
        // Recorded hits are part of the counters.
        self.take_out_records();
        let probes = self.probes.load();
        let stands_for = |glob: &Probe| {
            let alike = |probe: &&Arc<Probe>| probe.id == glob.id;
            glob.is_glob() && probes.iter().filter(alike).count() > 1
        };
        let wanted = probes.iter().filter(|probe| is_wanted(probe.id));
        let told = wanted.filter(|probe| !stands_for(probe));
        told.cloned().collect()
    }

    pub(crate) fn panicked(&self) -> Option<Panicked> {
        self.panicked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn now_ns(&self) -> u64 {
        let elapsed = self.started.get().map(Instant::elapsed).unwrap_or_default();
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
    }

    fn note(&self, probe: Option<&Probe>, text: String) {
        let probe = probe.map(|probe| shortened(probe.name.to_string()));
        self.sink.event(Event::Note(Note {
            ts_ns: self.now_ns(),
            probe,
            text: shortened(text),
        }));
    }

    fn tell_hit(&self, probe: &Probe, vcpu: usize, ip: Hex, regs: &vmm::kvm_regs) {
        // Earlier records are reported first.
        self.take_out_records();
        let ts_ns = self.records.not_before_last(self.now_ns());
        self.tell_hit_at(ts_ns, probe, vcpu, ip, regs);
    }

    fn tell_hit_at(&self, ts_ns: u64, probe: &Probe, vcpu: usize, ip: Hex, regs: &vmm::kvm_regs) {
        let Some(place) = probe.place() else { return };
        let regs = registers(regs, ip);
        self.sink.event(Event::Hit(Hit {
            probe: Arc::clone(&probe.name),
            ts_ns,
            vcpu,
            ip,
            symbol: Arc::clone(&place.symbol),
            args: regs.arguments(),
            regs,
        }));
    }
}

impl Engine {
    fn tell_return(&self, call: &Instance, vcpu: usize, regs: &vmm::kvm_regs) {
        // Earlier records are reported first.
        self.take_out_records();
        let ts_ns = self.records.not_before_last(self.now_ns());
        self.tell_return_at(ts_ns, call, vcpu, regs);
    }

    fn tell_return_at(&self, ts_ns: u64, call: &Instance, vcpu: usize, regs: &vmm::kvm_regs) {
        let Some(place) = call.probe.place() else {
            return;
        };
        let ip = Hex::from(call.returns_to);
        self.sink.event(Event::Return(Return {
            probe: Arc::clone(&call.probe.name),
            ts_ns,
            took_ns: ts_ns.saturating_sub(call.entered_ns),
            vcpu,
            ip,
            symbol: Arc::clone(&place.symbol),
            retval: Hex(regs.rax),
            regs: registers(regs, ip),
        }));
    }
}

/// The maximum length of a note's text, bytes. A note may quote the guest and clients, and many notes may wait for a reader.
const NOTE_BYTES_MAX: usize = 4096;

/// `text`, cut to the length of a note.
fn shortened(mut text: String) -> String {
    if text.len() > NOTE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(NOTE_BYTES_MAX));
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

/// The registers of an event. RIP is the address of the probed instruction, wherever the plant is.
fn registers(regs: &vmm::kvm_regs, ip: Hex) -> Registers {
    Registers {
        rax: Hex(regs.rax),
        rbx: Hex(regs.rbx),
        rcx: Hex(regs.rcx),
        rdx: Hex(regs.rdx),
        rsi: Hex(regs.rsi),
        rdi: Hex(regs.rdi),
        rbp: Hex(regs.rbp),
        rsp: Hex(regs.rsp),
        r8: Hex(regs.r8),
        r9: Hex(regs.r9),
        r10: Hex(regs.r10),
        r11: Hex(regs.r11),
        r12: Hex(regs.r12),
        r13: Hex(regs.r13),
        r14: Hex(regs.r14),
        r15: Hex(regs.r15),
        rip: ip,
        rflags: Hex(regs.rflags),
    }
}
