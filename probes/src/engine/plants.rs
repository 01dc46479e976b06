//! The plants of all probes, and the debug registers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use arc_swap::ArcSwap;
use detour::{KernelSpace, Tables};
use events::ProbeId;
use introspect::{PagingState, walk};
use text::{GuestError, Paused, Spot, SystemState, Vcpu};

use crate::debug_registers::DebugUse;
use crate::engine::running::Running;
use crate::plant::Plant;
use crate::plant_table::Table;
use crate::registry::{KernelEvent, Probe, Purpose, Reader};

/// The plants that vCPUs look up, and the kernel event probes.
#[derive(Debug)]
pub(crate) struct Plants {
    pub(crate) running: Arc<Running>,
    /// Looked up by vCPUs without a lock. Replaced with the vCPUs paused.
    pub(crate) table: ArcSwap<Table>,
    /// The kernel event probes.
    pub(crate) kernel_event_probes: Vec<Arc<Probe>>,
    /// Withdrawn plants without a debug register: see [`StandIns`](crate::engine::write::stand_in::StandIns).
    pub(crate) unwatched: Mutex<Vec<Gva>>,
}

impl Plants {
    /// The plant that a vCPU executed at `rip`.
    pub(crate) fn plant_at(
        &self,
        vcpu: &mut dyn Vcpu,
        rip: Gva,
    ) -> Result<Option<Arc<Plant>>, GuestError> {
        let table = self.table.load();
        if let Some(plant) = self.in_register_at(rip)
            && (self.running.probes_in_registers() || self.hides(plant.spot.gpa))
            && self.executes(vcpu, &plant)?
        {
            // A debug register does not fire where the emulator executes the instruction.
            return Ok(Some(plant));
        }
        if !table.may_hold(rip) {
            return Ok(None);
        }
        if let Some(plant) = table.at(rip) {
            return Ok(Some(Arc::clone(plant)));
        }
        // The same byte through another mapping: a kernel's first code runs at its load address, not at its link address.
        let state = vcpu.system_state()?;
        Ok(walk(&self.running.memory.as_ref(), &state.paging, rip)
            .ok()
            .and_then(|found| table.at_gpa(found.gpa).cloned()))
    }

    /// Whether the vCPU is about to execute the kernel's instruction at the plant. A debug register fires at an address: also for a program that jumps there
    /// and must not execute the instruction, and in other code of the guest's that is at the address on other page tables.
    pub(crate) fn executes(&self, vcpu: &mut dyn Vcpu, plant: &Plant) -> Result<bool, GuestError> {
        let state = vcpu.system_state()?;
        let found = walk(&self.running.memory.as_ref(), &state.paging, plant.at);
        Ok(state.privilege == 0 && found.is_ok_and(|found| found.gpa == plant.spot.gpa))
    }

    /// The site at `rip` that has a debug register.
    pub(crate) fn used_at(&self, rip: Gva) -> Option<Arc<Plant>> {
        let table = self.table.load();
        table.in_registers().find(|plant| plant.at == rip).cloned()
    }

    /// The site at `rip` that has a debug register in place of a hidden plant.
    pub(crate) fn in_register_at(&self, rip: Gva) -> Option<Arc<Plant>> {
        let table = self.table.load();
        let hides = self.running.hides_plants();
        table.only_at(rip).filter(|_| hides).cloned()
    }

    /// Whether the kernel event probes that see modules come and go are armed.
    pub(crate) fn see_modules_go_now(&self) -> bool {
        let mut probes = self.kernel_event_probes.iter();
        self.have_module_events()
            && probes.all(|probe| !probe.sees_modules_go() || probe.planted_at().is_some())
    }

    /// Whether the kernel has both functions for these probes.
    pub(crate) fn have_module_events(&self) -> bool {
        let probes = self.kernel_event_probes.iter();
        probes.filter(|probe| probe.sees_modules_go()).count() == 2
    }

    /// Whether the kernel event probes that see tasks start and end have plants.
    pub(crate) fn see_tasks_now(&self) -> bool {
        let mut events = [KernelEvent::TaskStarted, KernelEvent::TaskFreed].into_iter();
        events.all(|event| self.is_planted(event))
    }

    /// Whether the kernel has both functions for these probes.
    pub(crate) fn have_task_events(&self) -> bool {
        let probes = self.kernel_event_probes.iter();
        probes.filter(|probe| probe.sees_tasks()).count() == 2
    }

    /// Whether the instruction has a plant, or a debug register in place of a plant.
    pub(crate) fn has_plant(&self, at: Gva, spot: Spot) -> bool {
        let table = self.table.load();
        let plant = table.at(at).or_else(|| table.only_at(at));
        plant.is_some_and(|plant| plant.spot == spot)
    }

    /// The kernel's own page tables and image, once both are final: Linux changes the mapping of the image while booting.
    pub(crate) fn kernel_space(&self, state: &SystemState, rip: Gva) -> Option<KernelSpace> {
        let located = self.running.located.get()?;
        if self.running.kernel.is_entry(located.linked(rip)) {
            return None;
        }
        let boots =
            |purpose: &Purpose| matches!(purpose, Purpose::KernelEvent(KernelEvent::BootPatched));
        let paging = if self
            .kernel_event_probes
            .iter()
            .any(|probe| boots(&probe.purpose))
        {
            self.running.modules.paging()?
        } else {
            state.paging
        };
        Some(
            self.running
                .kernel_space_with(paging, located, Tables::Settled),
        )
    }

    /// All plants in `len` bytes from `at` on, also those that memory does not show, and those in debug registers.
    pub(crate) fn planted_in(&self, paging: &PagingState, at: Gva, len: u64) -> Vec<Gpa> {
        let table = self.table.load();
        self.running.in_memory(paging, at, len, |gpa, len| {
            match self.running.hides_plants() {
                true => {
                    let bytes = gpa.0..gpa.0.saturating_add(len as u64);
                    let in_registers = table.only().map(|plant| plant.spot.gpa);
                    let in_registers = in_registers.filter(|at| bytes.contains(&at.0));
                    in_registers.chain(table.starting_in(gpa, len)).collect()
                }
                false => self.running.planter.pages().planted(gpa, len),
            }
        })
    }

    /// Whether an instruction on the page with the byte at `gpa` has a debug register and no plant. Its bytes may go on to the page.
    pub(crate) fn has_register_on(&self, gpa: Gpa) -> bool {
        let table = self.table.load();
        let mut only = table.only();
        only.any(|plant| {
            let pages = [Some(plant.spot.gpa), plant.spot.beyond];
            pages
                .into_iter()
                .flatten()
                .any(|at| at.page() == gpa.page())
        })
    }

    /// Whether the page with the byte at `gpa` is hidden because of its plants.
    pub(crate) fn hides(&self, gpa: Gpa) -> bool {
        self.running.hides_plants() && self.table.load().has_plants_on(gpa)
    }

    /// Makes `table` the table for look-ups by vCPUs, and sets the debug registers accordingly.
    pub(crate) fn replace_table(&self, paused: &dyn Paused, mut table: Table) {
        self.watch_again(&mut table);
        paused.set_breakpoints(table.breakpoints());
        self.table.store(Arc::new(table));
    }

    /// Frees the debug registers of the watchpoints `probes`.
    pub(crate) fn forget_data(&self, paused: &dyn Paused, probes: &[Arc<Probe>]) {
        let mut table = self.table.load().as_ref().clone();
        let is_forgotten = |id: &ProbeId| probes.iter().any(|probe| probe.id == *id);
        for register in &mut table.debug {
            if let Some(DebugUse::Data(data)) = register {
                data.watchpoints.retain(|id| !is_forgotten(id));
                if data.watchpoints.is_empty() {
                    *register = None;
                }
            }
        }
        self.replace_table(paused, table);
    }

    pub(crate) fn unwatched(&self) -> MutexGuard<'_, Vec<Gva>> {
        self.unwatched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns the free debug registers in `table` to plants withdrawn without a register.
    pub(crate) fn watch_again(&self, table: &mut Table) {
        let debug_execute = self.running.abilities.debug_execute;
        self.unwatched().retain(|&at| {
            let plant = table
                .at(at)
                .filter(|plant| self.running.planter.is_withdrawn(plant.spot.gpa))
                .cloned();
            let has_register = table.in_registers().any(|plant| plant.at == at);
            let Some(plant) = plant.filter(|_| !has_register) else {
                return false;
            };
            if !debug_execute {
                return true;
            }
            let free = table.debug.iter_mut().find(|slot| slot.is_none());
            let waits = free.is_none();
            if let Some(free) = free {
                *free = Some(DebugUse::StandIn(plant));
            }
            waits
        });
    }

    /// Whether original bytes are returned to ftrace when the kernel compares before patching: the kernel's reading function is a
    /// kernel event probe, and has a plant.
    pub(crate) fn shows_own_to_ftrace(&self) -> bool {
        let copies = |purpose: &Purpose| {
            matches!(
                purpose,
                Purpose::KernelEvent(KernelEvent::Reader(Reader::Copy))
            )
        };
        let mut kernel_event_probes = self.kernel_event_probes.iter();
        kernel_event_probes.any(|probe| copies(&probe.purpose) && probe.planted_at().is_some())
    }

    /// Whether the probe of the event is armed, by a plant or in place of a plant.
    pub(crate) fn is_armed(&self, kernel_event: KernelEvent) -> bool {
        let is_it =
            |purpose: &Purpose| matches!(purpose, Purpose::KernelEvent(it) if *it == kernel_event);
        let mut probes = self.kernel_event_probes.iter();
        probes.any(|probe| is_it(&probe.purpose) && probe.planted_at().is_some())
    }

    pub(crate) fn is_planted(&self, kernel_event: KernelEvent) -> bool {
        let is_it =
            |purpose: &Purpose| matches!(purpose, Purpose::KernelEvent(it) if *it == kernel_event);
        let table = self.table.load();
        let mut kernel_event_probes = self.kernel_event_probes.iter();
        kernel_event_probes.any(|probe| {
            let plant = || table.at(probe.planted_at()?);
            // A guest write may have made the plant withdraw; then the probe reports no event.
            is_it(&probe.purpose)
                && plant().is_some_and(|plant| !self.running.planter.is_withdrawn(plant.spot.gpa))
        })
    }

    /// Whether the kernel's page tables and its text are final, apart from run-time patching.
    pub(crate) fn kernel_is_settled(&self) -> bool {
        let boots =
            |purpose: &Purpose| matches!(purpose, Purpose::KernelEvent(KernelEvent::BootPatched));
        self.running.located.get().is_some()
            && (self.running.boot_patched.get()
                || !self
                    .kernel_event_probes
                    .iter()
                    .any(|probe| boots(&probe.purpose)))
    }
}
