//! Hits that need the other vCPUs paused.

use std::sync::Arc;

use address::Gva;
use detour::{Detour, LeftAt};
use text::{GuestError, Paused, RFLAGS_RF, Ran, To, Vcpu};

use crate::engine::hits::Hits;
use crate::engine::hits::executor::{Executor, clear_resume_flag};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::hits::readers::Readers;
use crate::engine::kernel_events::KernelEvents;
use crate::engine::optimise::Optimiser;
use crate::engine::plants::Plants;
use crate::engine::returns::site_planter::SitePlanter;
use crate::engine::running::Running;
use crate::engine::write::stand_in::StandIns;
use crate::plant::{Plant, own_instruction};

/// Handles hits with the other vCPUs paused.
#[derive(Debug)]
pub(crate) struct PausedHits {
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) detour: Arc<Detour>,
    pub(crate) optimiser: Arc<Optimiser>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) stand_ins: Arc<StandIns>,
    pub(crate) site_planter: Arc<SitePlanter>,
    pub(crate) kernel_events: Arc<KernelEvents>,
    pub(crate) hits: Arc<Hits>,
}

impl PausedHits {
    /// Handles a hit that needs the other vCPUs paused; the caller has paused them. `run` runs the vCPU up to the next of
    /// the given stops.
    ///
    /// The plant may have been removed before the vCPU got its turn: then the guest continues with the original instruction,
    /// or behind the instruction if the emulator supports the instruction.
    ///
    /// [`HitOutcome::NeedsPause`]: the hit is handled, and the hardware must execute the instruction at the hidden plant.
    pub(crate) fn on_paused_hit<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        rip: Gva,
        run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<HitOutcome, GuestError> {
        self.optimiser.remove_rewritten_jumps(paused)?;
        let outcome = self.handle_paused_hit(vcpu, paused, rip, run)?;
        // A post-handler may have written to instructions under a jump.
        self.optimiser.remove_rewritten_jumps(paused)?;
        Ok(outcome)
    }

    fn handle_paused_hit<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        rip: Gva,
        mut run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<HitOutcome, GuestError> {
        if self.hits.resuming().remove(&vcpu.index()) {
            let plant = self.plants.table.load().at(rip).cloned();
            if let Some(plant) = plant.or_else(|| self.plants.in_register_at(rip)) {
                self.kernel_events
                    .handle_kernel_events(vcpu, paused, &plant, true)?;
                self.site_planter.plant_return_sites(paused, &plant);
            }
            return Ok(HitOutcome::Resume);
        }
        if let Some(left) = self.detour.left_at(rip) {
            self.on_paused_left(vcpu, paused, left)?;
            return Ok(HitOutcome::Resume);
        }
        let mut regs = vcpu.regs()?;
        if regs.rip != rip.0 {
            regs.rip = rip.0;
            vcpu.set_regs(&regs)?;
        }
        self.optimiser.look_at_int3(vcpu, paused)?;
        let at_hit = self.plants.plant_at(vcpu, rip)?;
        // A probe of hyprobe's own may have gone to a debug register while the vCPU waited.
        if let Some(plant) = at_hit.or_else(|| self.plants.in_register_at(rip)) {
            self.kernel_events
                .handle_kernel_events(vcpu, paused, &plant, false)?;
            self.site_planter.plant_return_sites(paused, &plant);
        }
        // A kernel event probe may have changed the plants.
        let Some(plant) = self.plants.plant_at(vcpu, rip)? else {
            self.executor.go_past_own(vcpu, rip)?;
            return Ok(HitOutcome::Resume);
        };
        let reading = self.readers.reading(vcpu, &plant)?;
        if self.go_past_alone(vcpu, paused, &plant, rip, &mut run)? == HitOutcome::NeedsPause {
            return Ok(HitOutcome::NeedsPause);
        }
        if let Some(reading) = reading {
            self.readers.read_alone(vcpu, paused, &reading, &mut run)?;
        }
        if self.optimiser.may_optimise(&plant) {
            let state = vcpu.system_state()?;
            match self.optimiser.space_for_detour(&state, rip) {
                Some(kernel) => self.optimiser.optimise(paused, &plant, &kernel)?,
                // The code may run on page tables without the region.
                None => plant.optimising.decide(),
            }
        }
        Ok(HitOutcome::Resume)
    }

    /// Steps over the instruction at `plant`, with the other vCPUs paused. [`HitOutcome::NeedsPause`] leaves an instruction at a hidden plant to the
    /// hardware.
    fn go_past_alone<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        plant: &Plant,
        rip: Gva,
        run: &mut impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<HitOutcome, GuestError> {
        self.executor.prepare_copy(vcpu, paused, plant, rip)?;
        self.optimiser.hand_on_int3(paused, plant, rip);
        let outcome = self.executor.go_past(vcpu, plant, rip)?;
        if outcome == HitOutcome::Resume || self.running.hides_plants() {
            return Ok(outcome);
        }
        let decoded = self.running.displaced(plant, rip);
        if decoded.is_none_or(|decoded| self.running.is_read_when_executed(plant, &decoded)) {
            self.stand_ins.withdraw_for_read(paused, plant)?;
        }
        self.executor
            .execute_in_place(vcpu, paused, plant, decoded.as_ref(), rip, run)?;
        Ok(HitOutcome::Resume)
    }

    /// Handles a hit of a debug register of hyprobe at `rip`, with the other vCPUs paused.
    ///
    /// [`HitOutcome::NeedsPause`]: the hit is handled, and the hardware must execute the instruction without plants.
    pub(crate) fn on_paused_debug_hit<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        rip: Gva,
        mut run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<HitOutcome, GuestError> {
        self.optimiser.remove_rewritten_jumps(paused)?;
        clear_resume_flag(vcpu)?;
        let resumes = self.hits.resuming().remove(&vcpu.index());
        let only = self.plants.used_at(rip);
        let only = only.as_deref();
        if let Some(plant) = only.filter(|_| !resumes)
            && !self.plants.executes(vcpu, plant)?
        {
            return Ok(HitOutcome::NeedsPause);
        }
        if self.stand_ins.end_stand_in(paused, rip)? {
            return Ok(HitOutcome::Resume);
        }
        if let Some(plant) = only {
            self.kernel_events
                .handle_kernel_events(vcpu, paused, plant, resumes)?;
            self.site_planter.plant_return_sites(paused, plant);
        }
        if self.running.hides_plants() {
            return match only {
                _ if resumes => Ok(HitOutcome::Resume),
                // KVM's emulator would report the breakpoint in spite of RF.
                Some(plant) if !plant.has_kernel_events() => {
                    self.executor.go_past(vcpu, plant, rip)
                }
                _ => {
                    // The page may be hidden by now: then the vCPU exits again, and the emulator executes the instruction.
                    let mut regs = vcpu.regs()?;
                    regs.rflags |= RFLAGS_RF;
                    vcpu.set_regs(&regs)?;
                    Ok(HitOutcome::Resume)
                }
            };
        }
        match only {
            // Debug registers are off while a vCPU executes one instruction alone.
            Some(plant) if !resumes => {
                let decoded = own_instruction(&self.running.planter, plant.spot, rip);
                self.executor.execute_in_place(
                    vcpu,
                    paused,
                    plant,
                    decoded.as_ref(),
                    rip,
                    &mut run,
                )?;
                self.optimiser.remove_rewritten_jumps(paused)?;
            }
            _ => (),
        }
        Ok(HitOutcome::Resume)
    }

    /// Plants the return site of a call whose detour has exited, and resumes the vCPU behind the exit. The hit has been reported,
    /// and the other vCPUs are paused.
    pub(crate) fn on_paused_left(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        left: LeftAt,
    ) -> Result<(), GuestError> {
        self.site_planter.plant_asked_sites(paused);
        let mut regs = vcpu.regs()?;
        regs.rip = left.on.0;
        vcpu.set_regs(&regs)
    }
}
