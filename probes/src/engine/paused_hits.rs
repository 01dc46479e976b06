//! Hits that need the other vCPUs paused.

use introspect::{Gva, walk};
use text::{GuestError, Passed, Paused, Ran, Spot, To, Vcpu, pass};

use super::Engine;
use super::hits::HitOutcome;
use super::jumps::INT3;
use crate::hit::{Plant, own_instruction};

impl Engine {
    /// Handles a hit that needs the other vCPUs paused; the caller has paused them. `run` runs the vCPU up to the next of
    /// the given stops.
    ///
    /// The plant may have been removed before the vCPU got its turn: then the guest continues with the original instruction,
    /// or behind the instruction if the emulator supports the instruction.
    pub(crate) fn on_paused_hit<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        rip: Gva,
        run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<HitOutcome, GuestError> {
        self.remove_rewritten_jumps(paused)?;
        let outcome = self.handle_paused_hit(vcpu, paused, rip, run)?;
        // A post-handler may have written to instructions under a jump.
        self.remove_rewritten_jumps(paused)?;
        Ok(outcome)
    }

    fn handle_paused_hit<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        rip: Gva,
        mut run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<HitOutcome, GuestError> {
        if self.resuming().remove(&vcpu.index()) {
            if let Some(plant) = self.table.load().at(rip).cloned() {
                self.reach_milestones(vcpu, paused, &plant, true)?;
                self.plant_return_sites(paused, &plant);
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
        self.look_at_int3(vcpu, paused)?;
        if let Some(plant) = self.plant_at(vcpu, rip)? {
            self.reach_milestones(vcpu, paused, &plant, false)?;
            self.plant_return_sites(paused, &plant);
        }
        // A kernel event probe may have changed the plants.
        let Some(plant) = self.plant_at(vcpu, rip)? else {
            self.go_past_own(vcpu, rip)?;
            return Ok(HitOutcome::Resume);
        };
        let reading = self.reading(vcpu, &plant)?;
        self.go_past_alone(vcpu, paused, &plant, rip, &mut run)?;
        if let Some(reading) = reading {
            self.read_alone(vcpu, paused, &reading, &mut run)?;
        }
        if self.may_optimise(&plant) {
            let state = vcpu.system_state()?;
            match self.space_for_detour(&state, rip) {
                Some(kernel) => self.optimise(paused, &plant, &kernel)?,
                // The code may run on page tables without the region.
                None => plant.optimising.decide(),
            }
        }
        Ok(HitOutcome::Resume)
    }

    /// Steps over the instruction at `rip`, whose plant was removed after the report of the hit, if the emulator supports the
    /// instruction. Otherwise a plant restored before this vCPU continues would report the hit again.
    fn go_past_own(&self, vcpu: &mut dyn Vcpu, rip: Gva) -> Result<(), GuestError> {
        let paging = vcpu.system_state()?.paging;
        let Ok(found) = walk(&self.memory.as_ref(), &paging, rip) else {
            return Ok(());
        };
        // The next page is not known any more.
        let spot = Spot {
            gpa: found.gpa,
            beyond: None,
        };
        let own = own_instruction(&self.planter, spot, rip);
        let Some(decoded) = own.filter(|own| own.bytes() != [INT3]) else {
            return Ok(());
        };
        let features = self.abilities.features;
        let memory = self.memory.as_ref();
        match pass(vcpu, memory, &self.planter, features, None, &decoded)? {
            Passed::Faulted(fault) => vcpu.inject(fault),
            Passed::Emulated | Passed::MustStep => Ok(()),
        }
    }

    /// Steps over the instruction at `plant`, with the other vCPUs paused.
    fn go_past_alone<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        plant: &Plant,
        rip: Gva,
        run: &mut impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<(), GuestError> {
        self.prepare_copy(vcpu, paused, plant, rip)?;
        self.hand_on_int3(paused, plant, rip);
        if self.go_past(vcpu, plant, rip)? == HitOutcome::Resume {
            return Ok(());
        }
        let decoded = plant.displaced(&self.planter, rip);
        if decoded.is_none_or(|decoded| self.is_read_when_executed(plant, &decoded)) {
            self.let_be_read(paused, plant)?;
        }
        self.execute_in_place(vcpu, paused, plant, decoded.as_ref(), rip, run)
    }
}
