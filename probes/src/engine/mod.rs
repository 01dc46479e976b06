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
//! plants up in an immutable value ([`Table`](crate::plant_table::Table)), without a lock. Plants change only with all other vCPUs paused: in
//! `on_exclusive`, or on a control thread.

mod abilities;
mod arm;
mod crashes;
mod emulated_batch;
pub(crate) mod engine_action;
mod event_task;
mod handover;
mod hit_arguments;
mod hits;
mod interest;
mod inventory;
mod kernel_events;
mod module_sites;
mod module_tracepoints;
mod module_types;
mod modules;
mod optimise;
mod plants;
mod probe_list;
mod program_stacks;
mod programs;
mod protected_accesses;
mod protected_alone;
mod protections;
mod records;
mod register;
mod reporter;
mod returns;
mod running;
mod stack_reader;
mod stacks;
mod task_watch;
mod tasks;
#[cfg(test)]
mod tests;
mod trap;
mod typed;
mod unprobed_exits;
mod uprobes;
mod watch;
mod wiring;
mod write;

use std::fmt;
use std::sync::Arc;

use address::Gva;
use detour::Detour;
use events::{EventSink, ProbeState};
use introspect::ModulesError;
use manifest::{ProbeConfig, WhenFull};
use text::{GuestMemory, Paused};

use crate::ResolveError;
use crate::engine::arm::Armer;
use crate::engine::crashes::Crashes;
use crate::engine::engine_action::with_engine_actions;
use crate::engine::handover::Handover;
use crate::engine::hits::Hits;
use crate::engine::hits::paused::PausedHits;
use crate::engine::modules::ModuleWatch;
use crate::engine::optimise::Optimiser;
use crate::engine::probe_list::ProbeList;
use crate::engine::protected_accesses::ProtectedAccesses;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::returns::Returns;
use crate::engine::returns::site_planter::SitePlanter;
use crate::engine::running::Running;
use crate::engine::running::located::Located;
use crate::engine::task_watch::TaskWatch;
use crate::engine::uprobes::Uprobes;
use crate::engine::watch::Watches;
use crate::engine::write::Writes;
use crate::kernel::Kernel;

/// The trap handler of a machine with probes. Each part holds the parts that it uses, and none knows the engine.
pub struct Engine {
    reporter: Arc<Reporter>,
    running: Arc<Running>,
    probes: Arc<ProbeList>,
    pub(crate) records: Arc<Records>,
    pub(crate) optimiser: Arc<Optimiser>,
    detour: Arc<Detour>,
    pub(crate) crashes: Arc<Crashes>,
    returns: Arc<Returns>,
    armer: Arc<Armer>,
    site_planter: Arc<SitePlanter>,
    module_watch: Arc<ModuleWatch>,
    pub(crate) task_watch: Arc<TaskWatch>,
    handover: Arc<Handover>,
    hits: Arc<Hits>,
    paused_hits: PausedHits,
    writes: Writes,
    pub(crate) uprobes: Arc<Uprobes>,
    watches: Arc<Watches>,
    protected_accesses: ProtectedAccesses,
    inventory: Inventory,
    unprobed_exits: UnprobedExits,
}

pub use abilities::Abilities;
pub use arm::error::ArmError;
pub use engine_action::EngineAction;
pub use event_task::event_task;
pub use inventory::{At, Inventory, ReadError};
pub use program_stacks::ProgramPart;
pub use register::{Prepared, RegisterError};
pub use stack_reader::{NoStacks, stopped_vcpu};
pub use stacks::Stack;
pub use unprobed_exits::UnprobedExits;

impl fmt::Debug for Engine {
    /// Not the parts: many hold the same kernel, and each would print it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Resolves the probes. Nothing is planted yet.
    ///
    /// # Errors
    ///
    /// If a probe specification cannot be resolved.
    pub fn new<A: Clone + Into<EngineAction>>(
        kernel: Kernel,
        probes: &[ProbeConfig<A>],
        memory: Arc<dyn GuestMemory>,
        abilities: Abilities,
        sink: Arc<dyn EventSink>,
    ) -> Result<Self, ResolveError> {
        let engine = Self::without_probes(kernel, memory, abilities, sink);
        let resolved = engine
            .probes
            .resolve_all(&with_engine_actions(probes), None)?;
        resolved
            .iter()
            .for_each(|probe| engine.probes.count_interest(probe));
        engine.probes.list.store(Arc::new(resolved));
        Ok(engine)
    }

    /// The probed kernel.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.running.kernel
    }

    /// Surveys the kernel's code, if a jump may replace a plant later. The survey takes up to a second, and would otherwise
    /// be made with the vCPUs paused. Called at the start, on a thread of its own.
    pub(crate) fn survey(&self) {
        let probes = self.probes.list.load();
        if self.optimiser.is_optimising()
            && probes.iter().any(|probe| probe.kept_by_detour().is_some())
        {
            let _ = self.running.kernel.survey();
        }
    }

    /// The probes with their states and counters, the switches, and guest memory.
    #[must_use]
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Starts the clock of timestamps: the guest's first instruction is about to run.
    pub fn start_clock(&self) {
        self.reporter.start_clock();
    }

    /// Sets the action for hits without room in the ring. Call this before probes are armed: existing jumps stay unchanged.
    pub fn set_when_full(&self, when_full: WhenFull) {
        self.records.set_when_full(when_full);
    }

    /// Reports the hits that detours have recorded. Any thread may call this at any time. Returns the number of records.
    pub fn take_out_records(&self) -> usize {
        self.records.take_out_records()
    }

    /// Sets the knob of optimisation, off by default: a session turns the knob on if requested. `false` makes every hit exit,
    /// `true` lets jumps replace plants again, where possible.
    ///
    /// # Errors
    ///
    /// If bytes cannot be changed; the remaining jumps count on.
    pub fn set_optimising(&self, paused: &dyn Paused, wanted: bool) -> Result<(), ArmError> {
        self.optimiser.set_optimising(paused, wanted)
    }

    /// Prepares the survey and the clock for [`set_optimising`](Self::set_optimising): in a second or less, while the guest runs.
    pub fn prepare_optimising(&self) {
        self.optimiser.prepare_optimising();
    }

    /// The knob of optimisation.
    pub fn is_optimising(&self) -> bool {
        self.optimiser.is_optimising()
    }

    /// The known plants in memory that is neither text of the kernel nor of a module that the guest has loaded: once the guest has
    /// booted, there must be none. The guest's list of modules is behind while a vCPU loads or unloads a module.
    ///
    /// # Errors
    ///
    /// If the list of modules cannot be read.
    pub fn stray_plants(&self, paused: &dyn Paused) -> Result<Vec<Gva>, ModulesError> {
        self.module_watch.stray_plants(paused)
    }

    /// The exits that no probe counts.
    #[must_use]
    pub fn unprobed_exits(&self) -> &UnprobedExits {
        &self.unprobed_exits
    }

    /// Whether a detour region is in use, memory of hyprobe that the guest's kernel can execute: from the first jump or copy
    /// on, until the guest ends, changes the region's page tables, or starts another kernel.
    pub fn has_detour_region(&self) -> bool {
        self.detour.is_laid()
    }

    /// Whether `at` is in the detour region, or in the kernel's entry that leads from an `int3` to the region.
    #[must_use]
    pub fn is_in_detour(&self, at: Gva) -> bool {
        self.detour.maps(at) || self.detour.is_before_lookup(at)
    }

    /// Arms the probes of a kernel loaded at its link address, before the kernel's first instruction.
    ///
    /// # Errors
    ///
    /// If a plant cannot be placed; no byte has been changed then.
    pub fn arm_loaded(&self, paused: &dyn Paused) -> Result<(), ArmError> {
        self.running.located.set(Some(Located {
            slide: 0,
            physical: None,
        }));
        self.armer.reconcile(paused)
    }

    /// Marks every probe as pending: the kernel unpacks itself, and the kernel's address is unknown until MSR_LSTAR is
    /// written.
    pub fn await_kernel(&self) {
        for probe in
            self.probes.list.load().iter().filter(|probe| {
                probe.status.state() == ProbeState::Pending && probe.place().is_some()
            })
        {
            probe.status.set_state(
                ProbeState::Pending,
                Some("the kernel has not said where it is".to_owned()),
            );
        }
    }
}
