//! `int3`s in place of plants come and go: with the vCPUs that use the kernel's handler, and with the CPUs of the guest.

use address::Gva;
use detour::{HandedOn, Lead};
use introspect::Idt;
use text::{GuestError, Paused, Vcpu};

use crate::engine::optimise::Optimiser;
use crate::engine::optimise::int3::{Int3Handler, VECTOR};
use crate::engine::running::INT3;
use crate::plant::Plant;
use crate::registry::{Missed, Purpose};

impl Optimiser {
    /// Whether a pause to check the vCPU's handler of `int3` is worthwhile. Called at every hit.
    pub(crate) fn may_look_at_int3(&self, vcpu: usize) -> bool {
        self.is_optimising() && self.running.has_int3() && !self.int3.looked_at.contains(vcpu)
    }

    /// Checks whether the vCPU uses the kernel's handler of `int3`. If all vCPUs do now, `int3`s replace plants.
    pub(crate) fn look_at_int3(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
    ) -> Result<(), GuestError> {
        let Int3Handler {
            looked_at, users, ..
        } = &*self.int3;
        if users.contains(vcpu.index()) || !self.running.has_int3() {
            return Ok(());
        }
        looked_at.insert(vcpu.index());
        let Some(handler) = self.int3.int3_handler() else {
            return Ok(());
        };
        let sregs = vcpu.sregs()?;
        let idt = Idt {
            base: Gva(sregs.idt.base),
            limit: sregs.idt.limit,
        };
        let paging = vcpu.system_state()?.paging;
        if idt.target(self.running.memory.as_ref(), &paging, VECTOR) == Some(handler) {
            users.insert(vcpu.index());
            if self.int3.vcpu_without_handler(paused).is_none() {
                self.look_at_cpus(paused)?;
            }
        }
        Ok(())
    }

    /// If the guest has an `int3` of its own at `plant`, which is about to be executed, gives the `int3` to the guest's handler,
    /// even if the site had an injected `int3` before.
    pub(crate) fn hand_on_int3(&self, paused: &dyn Paused, plant: &Plant, rip: Gva) {
        let displaced = plant.displaced(&self.running.planter, rip);
        if displaced.is_none_or(|displaced| displaced.bytes() != [INT3]) {
            return;
        }
        match self.detour.hand_on(paused, rip) {
            Ok(HandedOn::No) => (),
            // The vCPU's hit is not counted: the guest's handler treats the int3 as the guest's own.
            Ok(HandedOn::Maybe) => {
                for (probe, _) in &plant.probes {
                    // A call that is missed is a hit of its return probe.
                    if matches!(probe.purpose, Purpose::Return(_)) {
                        probe.counters.count_recorded();
                    }
                    probe.counters.miss(Missed::Disarmed);
                }
            }
            Err(error) => self
                .reporter
                .note(None, format!("an int3 at {rip} is led back: {error}")),
        }
    }

    /// Removes all injected `int3`s.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(crate) fn remove_int3s(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        let table = self.plants.table.load_full();
        for plant in table.plants() {
            if let Some(gpa) = plant.optimising.jump()
                && self.leads(gpa) == Some(Lead::Int3)
            {
                self.unoptimise(paused, plant)?;
            }
        }
        Ok(())
    }

    /// Lets `int3`s replace plants again after the last probe on the kernel's handler of `int3` has gone. Before `rest_init`, each
    /// `int3` comes at the plant's next hit.
    pub(crate) fn restore_int3s(&self, paused: &dyn Paused) {
        if self.early.is_on() {
            self.reopen_all();
        } else if let Err(error) = self.look_at_cpus(paused) {
            self.reporter
                .note(None, format!("int3s do not replace plants again: {error}"));
        }
    }

    /// Handles a CPU that has come online or is about to go offline: `int3`s replace plants everywhere, or nowhere.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(crate) fn look_at_cpus(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        if self.int3.vcpu_without_handler(paused).is_none() {
            self.reopen_all();
        } else {
            self.remove_int3s(paused)?;
        }
        let table = self.plants.table.load_full();
        let open = table.plants().filter(|plant| plant.optimising.is_open());
        let places: Vec<_> = open.map(|plant| plant.at).collect();
        // If no `int3` is allowed, the call sets the reason.
        self.optimise_all(paused, &places);
        Ok(())
    }
}
