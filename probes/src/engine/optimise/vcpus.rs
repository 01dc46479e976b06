//! The vCPUs that use the kernel's handler of `int3`: an injected `int3` may be in the text only while all of them do.
//!
//! ```text
//!            INIT, SIPI: no interrupt table, then that of the bring-up      the kernel's own
//!  offline ───────────────────────────────────────────────────────▶ online ── cpu_startup_entry ──▶ idle, tasks
//!     ▲                                                               │
//!     └──────────── arch_cpu_idle_dead ◀── offline in the mask ◀──────┘
//! ```
//!
//! A CPU that starts executes kernel code long before loading the kernel's interrupt table, and an `int3` there is a triple
//! fault. No exit reports the start: KVM handles INIT and SIPI itself. The engine therefore reads the kernel's own account. The
//! kernel sets a CPU's bit of `__cpu_online_mask` after loading the table, and clears the bit before the CPU dies; all online
//! CPUs use the same table. `cpu_startup_entry` and `arch_cpu_idle_dead` trigger the next check.
//!
//! A guest that has neither `arch_cpu_idle_dead` nor `takedown_cpu` takes no CPU offline. There each vCPU is checked at an exit
//! at a plant. A guest with only `takedown_cpu` may take a CPU offline unseen: with more than one vCPU the guest gets no `int3`.
//!
//! Each vCPU's thread writes the result of its own check; `int3`s are written and removed with all vCPUs paused.

use std::sync::atomic::{AtomicU64, Ordering};

use introspect::Gva;
use text::{GuestError, Paused};

use super::super::Engine;
use crate::registry::{Milestone, Purpose};

/// The kernel's mask of online CPUs, a bit each.
const ONLINE_MASK: &str = "__cpu_online_mask";
/// The function that takes a CPU offline; only a table of hotplug steps refers to the function, so no compiler inlines it.
const TAKES_OFFLINE: &str = "takedown_cpu";
const WORD_BITS: usize = 64;
/// The maximum number of vCPUs of a machine.
const MAX_VCPUS: usize = 256;

/// A set of vCPUs.
#[derive(Debug, Default)]
pub(super) struct VcpuSet([AtomicU64; MAX_VCPUS / WORD_BITS]);

impl VcpuSet {
    pub(super) fn insert(&self, vcpu: usize) {
        if let Some(word) = self.0.get(vcpu / WORD_BITS) {
            word.fetch_or(1 << (vcpu % WORD_BITS), Ordering::Relaxed);
        }
    }

    pub(super) fn contains(&self, vcpu: usize) -> bool {
        let word = self.0.get(vcpu / WORD_BITS);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (vcpu % WORD_BITS) & 1 != 0)
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }
}

impl Engine {
    /// The first vCPU of the machine that is not known to use the kernel's handler of `int3`; `None` if all are.
    pub(super) fn vcpu_without_handler(&self, paused: &dyn Paused) -> Option<usize> {
        let users = &self.optimised.int3.users;
        let mut vcpus = 0..paused.vcpus();
        if !self.takes_cpus_offline() {
            return vcpus.find(|vcpu| !users.contains(*vcpu));
        }
        if users.is_empty() {
            return Some(0);
        }
        if vcpus.len() == 1 {
            return None;
        }
        let is_watched = self.is_planted(Milestone::CpuOffline);
        vcpus.find(|vcpu| !(is_watched && self.is_online(*vcpu)))
    }

    /// The same before `rest_init`: only one CPU runs, and starts the others behind `rest_init`.
    pub(super) fn early_vcpu_without_handler(&self) -> Option<usize> {
        self.optimised.int3.users.is_empty().then_some(0)
    }

    /// Whether CPUs may go offline, possibly without reaching the kernel event probe: a compiler may inline its function.
    fn takes_cpus_offline(&self) -> bool {
        let symbols = self.kernel.symbols();
        let mut functions = [Milestone::CpuOffline.function(), TAKES_OFFLINE].into_iter();
        functions.any(|function| symbols.address_of(function).is_some())
    }

    pub(super) fn is_planted(&self, milestone: Milestone) -> bool {
        let is_it =
            |purpose: &Purpose| matches!(purpose, Purpose::Milestone(it) if *it == milestone);
        let table = self.table.load();
        let mut milestones = self.milestones.iter();
        milestones.any(|probe| {
            let plant = || table.at(probe.planted_at()?);
            // A guest write may have made the plant withdraw; then the probe reports no event.
            is_it(&probe.purpose)
                && plant().is_some_and(|plant| !self.planter.is_withdrawn(plant.spot.gpa))
        })
    }

    /// Whether the kernel counts CPU `cpu` as online. The order of the vCPUs does not matter: all of them have to be online.
    fn is_online(&self, cpu: usize) -> bool {
        let word = || {
            let located = self.located.get()?;
            let mask = self.kernel.symbols().address_of(ONLINE_MASK)?;
            let at = Gva(mask.0.checked_add((cpu / WORD_BITS * 8) as u64)?);
            self.memory.read_u64(self.gpa_of(at, located)?).ok()
        };
        word().is_some_and(|word| word >> (cpu % WORD_BITS) & 1 != 0)
    }

    /// Lets `int3`s replace plants again after the last probe on the kernel's handler of `int3` has gone. Before `rest_init`, each
    /// `int3` comes at the plant's next hit.
    pub(in crate::engine) fn let_int3s_return(&self, paused: &dyn Paused) {
        if self.optimised.early.is_on() {
            self.reopen_all();
        } else if let Err(error) = self.look_at_cpus(paused) {
            self.note(None, format!("int3s do not replace plants again: {error}"));
        }
    }

    /// Handles a CPU that has come online or is about to go offline: `int3`s replace plants everywhere, or nowhere.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(in crate::engine) fn look_at_cpus(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        if self.vcpu_without_handler(paused).is_none() {
            self.reopen_all();
        } else {
            self.remove_int3s(paused)?;
        }
        let table = self.table.load_full();
        let open = table.plants().filter(|plant| plant.optimising.is_open());
        let places: Vec<_> = open.map(|plant| plant.at).collect();
        // If no `int3` is allowed, the call sets the reason.
        self.optimise_all(paused, &places);
        Ok(())
    }
}
