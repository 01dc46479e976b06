//! Jumps and `int3`s go: before plants and guest writes at their place, after a handler has written to their instructions, and at the
//! end of early detours.

use std::sync::atomic::Ordering;

use address::{Gpa, Gva};
use detour::Tables;
use events::ProbeState;
use text::{GuestError, Paused, Spot};

use crate::engine::optimise::Optimiser;
use crate::plant::Plant;

impl Optimiser {
    /// Removes the jump or `int3` that replaces `plant`, if any. The probe still counts threads inside the detour.
    ///
    /// # Errors
    ///
    /// If memory cannot be written; then the jump stays.
    pub(crate) fn unoptimise(&self, paused: &dyn Paused, plant: &Plant) -> Result<(), GuestError> {
        if let Some(gpa) = plant.optimising.jump() {
            self.running.planter.set_jump(paused, gpa, None)?;
            self.end_lead(plant.at);
            self.jumps().remove(&gpa);
            plant.optimising.set_jump(None);
            for (probe, _) in &plant.probes {
                // A removed probe stays optimised to its end.
                let is_armed = self.probes.armed.load(Ordering::Acquire)
                    && probe.is_enabled()
                    && probe.status.state() == ProbeState::Armed;
                probe.tier.set_optimised(!is_armed);
            }
        }
        plant.optimising.reopen();
        Ok(())
    }

    pub(crate) fn end_lead(&self, site: Gva) {
        if let Err(error) = self.detour.end_lead(site) {
            self.reporter
                .note(None, format!("an int3 at {site} is still led on: {error}"));
        }
    }

    /// Prepares new plants at these locations. Jumps of other plants over them are removed first. So are all `int3`s, if a
    /// location is in the part of the kernel's handler that each `int3` executes.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(crate) fn make_room_for_plants(
        &self,
        paused: &dyn Paused,
        spots: impl Iterator<Item = Spot>,
    ) -> Result<(), GuestError> {
        let table = self.plants.table.load_full();
        let spots: Vec<_> = spots.collect();
        if spots
            .iter()
            .any(|spot| self.int3.is_before_switch(spot.gpa))
        {
            self.remove_int3s(paused)?;
        }
        for spot in spots {
            for jump in self.running.planter.pages().jumps(spot.gpa, 1) {
                let at = self.plant_led_from(jump);
                if let Some(plant) = at.and_then(|at| table.at(at))
                    && plant.spot != spot
                {
                    self.unoptimise(paused, plant)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the jumps that the guest is about to change by writing `data` at `gpa`.
    pub(crate) fn make_room_for_write(
        &self,
        paused: &dyn Paused,
        gpa: Gpa,
        data: &[u8],
    ) -> Result<(), GuestError> {
        if self.early.patches_int3_handler(gpa, data.len()) {
            self.remove_int3s(paused)?;
        }
        if !self.running.planter.pages().overwrites_jump(gpa, data) {
            return Ok(());
        }
        self.remove_jumps(paused, self.running.planter.pages().jumps(gpa, data.len()))
    }

    /// Removes the jumps over instructions that handlers have written to.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub(crate) fn remove_rewritten_jumps(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        if self.running.planter.rewritten_jumps().is_empty() {
            return Ok(());
        }
        self.remove_jumps(paused, self.running.planter.rewritten_jumps().take())
    }

    fn remove_jumps(
        &self,
        paused: &dyn Paused,
        jumps: impl IntoIterator<Item = Gpa>,
    ) -> Result<(), GuestError> {
        let table = self.plants.table.load_full();
        for jump in jumps {
            let at = self.plant_led_from(jump);
            if let Some(plant) = at.and_then(|at| table.at(at)) {
                self.unoptimise(paused, plant)?;
            }
        }
        Ok(())
    }

    /// Ends early detours: at `rest_init`, after the kernel has patched itself, or when nothing would stop the vCPU there. All sites
    /// are checked again: an `int3` may become a jump, and an `int3` that is allowed only early goes. The region is the kernel's
    /// own from `rest_init` on.
    pub(crate) fn end_early_detours(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        if self.early.space.swap(None).is_some() {
            self.remove_int3s(paused)?;
            self.reopen_all();
        }
        if let Some((paging, located)) = self
            .running
            .modules
            .paging()
            .zip(self.running.located.get())
        {
            let kernel = self
                .running
                .kernel_space_with(paging, located, Tables::Settled);
            self.detour.settle(self.running.memory.as_ref(), &kernel);
        }
        Ok(())
    }
}
