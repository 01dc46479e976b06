//! The displaced instruction: emulated, executed as a copy, or executed in place.

use std::sync::Arc;

use address::Gva;
use detour::Detour;
use events::Tier;
use introspect::insn::Decoded;
use introspect::walk;
use text::{GuestError, InstructionFault, Passed, PlantByte, RFLAGS_RF, Spot, Vcpu};
use vmm::kvm_regs;

use crate::engine::hits::outcome::HitOutcome;
use crate::engine::plants::Plants;
use crate::engine::reporter::Reporter;
use crate::engine::running::{INT3, Running};
use crate::engine::watch::Watches;
use crate::handler::{FaultOutcome, HitContext};
use crate::plant::{Plant, own_instruction};
use crate::registry::Purpose;

/// The answer of the fault-handlers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    pub(crate) outcome: FaultOutcome,
    /// Whether a handler has requested the registers for a change.
    pub(crate) changed: bool,
    pub(crate) regs: kvm_regs,
}

/// Lets a vCPU execute the displaced instruction of a plant.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) detour: Arc<Detour>,
    pub(crate) watches: Arc<Watches>,
}

impl Executor {
    /// Calls the fault-handlers of a plant; the vCPU stands at the instruction with the registers `regs`.
    pub(crate) fn offer_fault(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        fault: InstructionFault,
        regs: kvm_regs,
    ) -> Offered {
        let mut hit = HitContext::new(vcpu, &self.running.planter, &self.plants.table, regs);
        let mut outcome = FaultOutcome::ToGuest;
        for (probe, _) in &plant.probes {
            if let Purpose::Handle(handler) = &probe.purpose
                && probe.has_hit(hit.vcpu())
            {
                outcome = handler.0.fault(&mut hit, fault);
                if outcome == FaultOutcome::Swallowed {
                    break;
                }
            }
        }
        Offered {
            outcome,
            changed: hit.changed,
            regs: hit.regs,
        }
    }

    pub(crate) fn go_past(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        rip: Gva,
    ) -> Result<HitOutcome, GuestError> {
        match self.running.displaced(plant, rip) {
            Some(decoded) => self.emulate(vcpu, plant, &decoded),
            None => Ok(HitOutcome::NeedsPause),
        }
    }

    pub(crate) fn emulate(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        decoded: &Decoded,
    ) -> Result<HitOutcome, GuestError> {
        if decoded.bytes() == [INT3] {
            // An SVM reads the int3 before it injects #BP, which it cannot do on a hidden page.
            if self.running.hides_plants()
                || self.detour.sends_back(decoded.at())
                || self.running.is_read_when_executed(plant, decoded)
            {
                return Ok(HitOutcome::NeedsPause);
            }
            if self.running.planter.byte() == PlantByte::Port && self.running.abilities.int3_exits {
                // VT-x injects #BP with the length of the last int3 that exited, so this int3 has to exit: the vCPU executes the
                // int3 in place, and the VMM then injects #BP.
                return Ok(HitOutcome::NeedsPause);
            }
            clear_resume_flag(vcpu)?;
            vcpu.inject_breakpoint(decoded.at())?;
            return Ok(HitOutcome::Resume);
        }
        let kernel = plant.kernel_tables(self, decoded.at());
        match self.watches.pass(vcpu, kernel, decoded)? {
            Passed::Emulated => {
                self.after(vcpu, plant, Tier::Emulated)?;
                Ok(HitOutcome::Resume)
            }
            Passed::Faulted(fault) => {
                let regs = vcpu.regs()?;
                let offered = self.offer_fault(vcpu, plant, fault, regs);
                if offered.changed {
                    vcpu.set_regs(&offered.regs)?;
                }
                match offered.outcome {
                    FaultOutcome::ToGuest => vcpu.inject(fault)?,
                    FaultOutcome::Swallowed => clear_resume_flag(vcpu)?,
                }
                Ok(HitOutcome::Resume)
            }
            Passed::MustStep => self.relocate(vcpu, plant, decoded),
        }
    }

    /// Calls the post-handlers: the instruction has been executed.
    pub(crate) fn after(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        tier: Tier,
    ) -> Result<(), GuestError> {
        for (probe, _) in &plant.probes {
            probe.tier.passed_by(tier);
            if let Purpose::Handle(handler) = &probe.purpose
                && probe.has_hit(vcpu.index())
            {
                let regs = vcpu.regs()?;
                let mut hit =
                    HitContext::new(vcpu, &self.running.planter, &self.plants.table, regs);
                handler.0.post(&mut hit);
                let (changed, regs) = (hit.changed, hit.regs);
                if changed {
                    vcpu.set_regs(&regs)?;
                }
            }
        }
        Ok(())
    }

    /// Steps over the instruction at `rip`, whose plant was removed after the report of the hit, if the emulator supports the
    /// instruction. Otherwise a plant restored before this vCPU continues would report the hit again.
    pub(crate) fn go_past_own(&self, vcpu: &mut dyn Vcpu, rip: Gva) -> Result<(), GuestError> {
        let paging = vcpu.system_state()?.paging;
        let Ok(found) = walk(&self.running.memory.as_ref(), &paging, rip) else {
            return Ok(());
        };
        // The next page is not known any more.
        let spot = Spot {
            gpa: found.gpa,
            beyond: None,
        };
        let own = own_instruction(&self.running.planter, spot, rip);
        let Some(decoded) = own.filter(|own| own.bytes() != [INT3]) else {
            return Ok(());
        };
        match self.watches.pass(vcpu, None, &decoded)? {
            Passed::Faulted(fault) => vcpu.inject(fault),
            Passed::Emulated | Passed::MustStep => Ok(()),
        }
    }
}

/// Clears RF after a debug register has fired or an `int3` has been executed: RF was clear before. A set RF would keep the next
/// debug register from firing, possibly only after the guest's handler has returned with the saved flags.
pub(crate) fn clear_resume_flag(vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
    let mut regs = vcpu.regs()?;
    if regs.rflags & RFLAGS_RF != 0 {
        regs.rflags &= !RFLAGS_RF;
        vcpu.set_regs(&regs)?;
    }
    Ok(())
}
