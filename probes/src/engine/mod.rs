//! The engine: the trap handler of a machine with probes.
//!
//! ```text
//!  vCPU at a plant ── exit ──▶ on_trap ── look up ──▶ count, tell ──▶ emulate ── Resume ──▶ guest
//!                                │                                      │ cannot: a copy of it, or
//!                                │ not ours: Reinject                   ▼
//!                                ▼                       on_exclusive: own byte back, execute, plant again
//!                              guest, device
//! ```
//!
//! Threads: `on_trap` runs on every vCPU's thread at once and takes no lock that anybody waits under; what is planted
//! is a value that is read without one ([`Table`]). Changes to it happen with all other vCPUs paused: in
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
use introspect::Gva;
use introspect::insn::{CpuidWords, Features};

use crate::detour::Detour;
use crate::event::{Crash, Event, EventSink, Hit, Note, Registers, Return};
use crate::guest::GuestMemory;
use crate::hit::Table;
use crate::kernel::Kernel;
use crate::plant::{PlantByte, Planter};
use crate::registry::{Probe, ProbeId};
use crate::returns::{Calls, Instance};
use crate::{Hex, ProbeSummary, ResolveError};

pub use arm::ArmError;
use handover::Successor;
pub use inventory::{At, ProbeRecord, ReadError};
use located::{Reached, Whereabouts};
use modules::Watched;
use optimise::Optimised;
use records::Records;
pub use register::{Action, NewProbe, Prepared, RegisterError};
use return_sites::ReturnSites;

/// What is known of a panic of the guest's.
#[derive(Clone, Debug)]
pub(crate) struct Panicked {
    /// The format of its message.
    pub(crate) message: String,
    pub(crate) crash: Crash,
    /// When, unless another kernel runs since.
    pub(crate) at: Option<Instant>,
}

/// What the host does for the engine, and the processor that it gives the guest.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// The byte that is planted.
    pub plant: PlantByte,
    /// Execution breakpoints in debug registers stop the guest's kernel.
    pub debug_execute: bool,
    /// An `int3` of the guest's kernel exits, when that is asked for.
    pub int3_exits: bool,
    /// An `int3` of the guest's kernel goes to the guest's own handler, unless it is asked to exit.
    pub int3_to_guest: bool,
    /// Interrupts can be held back while one vCPU runs alone.
    pub holds_interrupts: bool,
    /// What the guest's processor has.
    pub features: Features,
    /// The same as CPUID tells it: whether a copy of an instruction can be let run.
    pub cpuid: CpuidWords,
}

/// See the module's text.
#[derive(Debug)]
pub struct Engine {
    kernel: Kernel,
    memory: Arc<dyn GuestMemory>,
    planter: Planter,
    abilities: Abilities,
    table: ArcSwap<Table>,
    /// In the order in which they were asked for. Replaced with the vCPUs paused.
    probes: ArcSwap<Vec<Arc<Probe>>>,
    /// For what they are counted.
    counted: interest::Counted,
    next_id: AtomicU64,
    /// The knob: off takes every plant away and leaves each probe's own state.
    armed: AtomicBool,
    milestones: Vec<Arc<Probe>>,
    /// Calls that are followed to their return.
    calls: Calls,
    return_sites: ReturnSites,
    /// See [`Engine::end_task`].
    dying: Mutex<BTreeMap<usize, u64>>,
    /// See [`Engine::resuming`].
    resuming: Mutex<BTreeSet<usize>>,
    /// See [`Engine::let_be_read`].
    unwatched: Mutex<Vec<Gva>>,
    /// Where the kernel runs, once that is known. Unset when another kernel takes over.
    located: Whereabouts,
    boot_patched: Reached,
    /// The kernel has freed its init text.
    init_freed: Reached,
    successor: Successor,
    /// A reader has not returned in time, and that has been told.
    readers_lost: AtomicBool,
    modules: Watched,
    detour: Detour,
    optimised: Optimised,
    /// See [`Engine::int3_exits`].
    int3_exits: AtomicU64,
    records: Records,
    sink: Arc<dyn EventSink>,
    started: OnceLock<Instant>,
    panicked: Mutex<Option<Panicked>>,
}

impl Engine {
    /// Resolves what is to be probed. Nothing is planted yet.
    ///
    /// # Errors
    ///
    /// When a specification cannot be meant.
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

    /// The kernel that is probed.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The guest's first instruction is about to run: timestamps count from here.
    pub fn start_clock(&self) {
        self.started.get_or_init(Instant::now);
    }

    /// Looks through the kernel, if a jump may come to stand for a plant: that takes a second or less, and would otherwise
    /// be done with the vCPUs paused. From a thread of its own, at the start.
    pub(crate) fn survey(&self) {
        let probes = self.probes.load();
        if self.is_optimising() && probes.iter().any(|probe| probe.kept_by_detour().is_some()) {
            let _ = self.kernel.survey();
        }
    }

    /// How many `int3`s have left the guest, where something else is planted, to be given back: the guest's own ones under
    /// a plant, those of a vCPU that runs alone, and where KVM cannot leave them to the guest
    /// ([`HostFacts::int3_reaches_guest`](vmm::HostFacts::int3_reaches_guest)), each. No probe counts them among its exits.
    #[must_use]
    pub fn int3_exits(&self) -> u64 {
        self.int3_exits.load(Ordering::Relaxed)
    }

    /// What has become of each probe, in the order in which they were asked for.
    #[must_use]
    pub fn summaries(&self) -> Vec<ProbeSummary> {
        self.told(|_| true)
            .iter()
            .map(|probe| probe.summary())
            .collect()
    }

    /// Of the probes that are wanted, those that are shown: a glob in a module is told by its matches, once it has any.
    fn told(&self, is_wanted: impl Fn(ProbeId) -> bool) -> Vec<Arc<Probe>> {
        // Whoever looks at numbers sees those of what has happened.
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
        let probe = probe.map(|probe| probe.name.to_string());
        self.sink.event(Event::Note(Note {
            ts_ns: self.now_ns(),
            probe,
            text,
        }));
    }

    fn tell_hit(&self, probe: &Probe, vcpu: usize, ip: Hex, regs: &vmm::kvm_regs) {
        // What was recorded before this comes before it.
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
        // What was recorded before this comes before it.
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

/// RIP is that of the probed instruction, wherever the plant sits.
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
