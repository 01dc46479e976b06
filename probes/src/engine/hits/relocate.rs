//! The relocated tier: an instruction without support in the emulator runs as a copy, which jumps back behind the original.

use address::Gva;
use events::Tier;
use introspect::PagingState;
use introspect::insn::{Class, Decoded, Needs, Relocation, classify, relocation};
use text::{GuestError, KnowsTables, Paused, SystemState, Vcpu};

use crate::engine::hits::executor::Executor;
use crate::engine::hits::outcome::HitOutcome;
use crate::plant::Plant;
use crate::registry::Purpose;

const RFLAGS_TF: u64 = 1 << 8;

impl Executor {
    /// Redirects the vCPU to the copy of the displaced instruction, if a copy exists and has the same effect now.
    pub(crate) fn relocate(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        decoded: &Decoded,
    ) -> Result<HitOutcome, GuestError> {
        let Some(state) = self.allows_copy(vcpu, plant, decoded)? else {
            return Ok(HitOutcome::NeedsPause);
        };
        let copy = self
            .detour
            .copy_of(self.running.memory.as_ref(), &state.paging, decoded);
        let Some(copy) = copy else {
            return Ok(HitOutcome::NeedsPause);
        };
        let regs = vcpu.regs()?;
        vcpu.set_regs(&vmm::kvm_regs {
            rip: copy.0,
            ..regs
        })?;
        for (probe, _) in &plant.probes {
            probe.tier.passed_by(Tier::Relocated);
        }
        Ok(HitOutcome::Resume)
    }

    /// The vCPU's state, if a copy may replace the displaced instruction at this hit.
    fn allows_copy(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        decoded: &Decoded,
    ) -> Result<Option<SystemState>, GuestError> {
        let Relocation::Relocatable(needs) = relocation(decoded, &self.running.abilities.cpuid)
        else {
            return Ok(None);
        };
        // The vCPU is not stopped again behind the instruction.
        let wants_post =
            |purpose: &Purpose| matches!(purpose, Purpose::Handle(handler) if handler.0.has_post());
        if plant
            .probes
            .iter()
            .any(|(probe, _)| wants_post(&probe.purpose))
        {
            return Ok(None);
        }
        if vcpu.regs()?.rflags & RFLAGS_TF != 0 {
            // The guest's own single step counts instructions.
            return Ok(None);
        }
        let state = vcpu.system_state()?;
        let xcr0 = if needs == Needs::Avx { vcpu.xcr0()? } else { 0 };
        let met = needs.are_met(state.paging.cr0, state.paging.cr4, xcr0);
        Ok((state.privilege == 0 && met).then_some(state))
    }

    /// Makes the copy for [`relocate`](Self::relocate). The other vCPUs are paused.
    pub(crate) fn prepare_copy(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
        plant: &Plant,
        rip: Gva,
    ) -> Result<(), GuestError> {
        if self.running.hides_plants() {
            // The guest would find the region with the copies.
            return Ok(());
        }
        let displaced = self.running.displaced(plant, rip);
        let must_step = |decoded: &Decoded| matches!(classify(decoded), Class::MustStep(_));
        let Some(decoded) = displaced.filter(must_step) else {
            return Ok(());
        };
        let Some(state) = self.allows_copy(vcpu, plant, &decoded)? else {
            return Ok(());
        };
        let Some(kernel) = self.plants.kernel_space(&state, rip) else {
            return Ok(());
        };
        let prepared = self
            .detour
            .prepare(paused, self.running.memory.as_ref(), &kernel, &decoded);
        if let Err(error) = prepared
            && self.detour.is_news(&error)
        {
            self.reporter.note(
                None,
                format!("instructions that cannot be emulated are executed in place: {error}"),
            );
        }
        Ok(())
    }
}

impl KnowsTables for Executor {
    /// The kernel's page tables, once final. `None` for code that may run on other page tables.
    fn kernel_tables(&self, at: Gva) -> Option<PagingState> {
        let located = self.running.located.get()?;
        if self.running.kernel.is_entry(located.linked(at)) {
            return None;
        }
        self.running
            .modules
            .paging()
            .or_else(|| self.detour.paging())
    }
}
