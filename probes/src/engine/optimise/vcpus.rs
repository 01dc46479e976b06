//! Which vCPUs go to the kernel's handler of `int3`: one of ours may stand in the text only while all of them do.
//!
//! ```text
//!            INIT, SIPI: no interrupt table, then that of the bring-up      the kernel's own
//!  offline ───────────────────────────────────────────────────────▶ online ── cpu_startup_entry ──▶ idle, tasks
//!     ▲                                                               │
//!     └──────────── arch_cpu_idle_dead ◀── offline in the mask ◀──────┘
//! ```
//!
//! A CPU that starts executes kernel code long before it has loaded the kernel's interrupt table, and an `int3` there is a
//! triple fault. It does so without an exit: KVM handles INIT and SIPI itself. So the kernel is asked. It sets a CPU's bit of
//! `__cpu_online_mask` behind the load of the table, and clears it before the CPU dies; all CPUs that are online use the
//! one table. `cpu_startup_entry` and `arch_cpu_idle_dead` tell when to look again.
//!
//! A guest that has neither `arch_cpu_idle_dead` nor `takedown_cpu` takes no CPU offline. There each vCPU is looked at when it
//! exits at a plant. One that has only `takedown_cpu` may take a CPU offline unseen: with more than one vCPU it gets no `int3`.
//!
//! What is seen of vCPUs is written by their own threads; `int3`s come and go with all vCPUs paused.

use std::sync::atomic::{AtomicU64, Ordering};

use introspect::Gva;

use super::super::Engine;
use crate::detour::Lead;
use crate::guest::{GuestError, Paused};
use crate::registry::{Milestone, Purpose};

/// The CPUs that are online, a bit each.
const ONLINE_MASK: &str = "__cpu_online_mask";
/// Takes a CPU offline; only the table of steps refers to it, so that it is never inlined.
const TAKES_OFFLINE: &str = "takedown_cpu";
const WORD_BITS: usize = 64;
/// No machine has more vCPUs.
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

    /// Whether CPUs may go offline, be it without passing a milestone: a compiler may inline its function.
    fn takes_cpus_offline(&self) -> bool {
        let symbols = self.kernel.symbols();
        let mut functions = [Milestone::CpuOffline.function(), TAKES_OFFLINE].into_iter();
        functions.any(|function| symbols.address_of(function).is_some())
    }

    fn is_planted(&self, milestone: Milestone) -> bool {
        let is_it =
            |purpose: &Purpose| matches!(purpose, Purpose::Milestone(it) if *it == milestone);
        let table = self.table.load();
        let mut milestones = self.milestones.iter();
        milestones.any(|probe| {
            let plant = || table.at(probe.planted_at()?);
            // One that a guest write has made withdraw tells of nothing.
            is_it(&probe.purpose)
                && plant().is_some_and(|plant| !self.planter.is_withdrawn(plant.spot.gpa))
        })
    }

    /// Whether the kernel counts the CPU of that number among those that are online. The order of the vCPUs does not
    /// matter: all of them have to be.
    fn is_online(&self, cpu: usize) -> bool {
        let word = || {
            let located = self.located.get()?;
            let mask = self.kernel.symbols().address_of(ONLINE_MASK)?;
            let at = Gva(mask.0.checked_add((cpu / WORD_BITS * 8) as u64)?);
            self.memory.read_u64(self.gpa_of(at, located)?).ok()
        };
        word().is_some_and(|word| word >> (cpu % WORD_BITS) & 1 != 0)
    }

    /// A CPU has come online or is about to go: makes `int3`s stand for plants everywhere, or nowhere.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
    pub(in crate::engine) fn look_at_cpus(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        let table = self.table.load_full();
        let may_stand = self.vcpu_without_handler(paused).is_none();
        let mut places = Vec::new();
        for plant in table.plants() {
            match plant.optimising.jump() {
                None if may_stand => plant.optimising.reopen(),
                Some(gpa) if !may_stand && self.leads(gpa) == Some(Lead::Int3) => {
                    self.unoptimise(paused, plant)?;
                }
                _ => continue,
            }
            places.push(plant.at);
        }
        // Where none may stand, this says why.
        self.optimise_all(paused, &places);
        Ok(())
    }
}
