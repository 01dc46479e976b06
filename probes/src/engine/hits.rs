//! Hits of plants: counts them, calls their handlers, and moves the vCPU past the displaced instruction.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use events::Tier;
use introspect::insn::Decoded;
use introspect::{Gpa, Gva, walk};
use text::{GuestError, Passed, PlantByte, Vcpu, pass};

use super::Engine;
use super::debug_hits::clear_resume_flag;
use super::jumps::INT3;
use super::readers::ReaderNeeds;
use crate::handler::{FaultOutcome, HitContext, PreOutcome};
use crate::hit::Plant;
use crate::registry::{Milestone, Purpose};

const PAGE_BYTES: u64 = 4096;

/// The opcode of `outs` with bytes, which ends the instruction.
const OUTSB: u8 = 0x6e;

/// The result of the handlers of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The instruction is to be executed.
    GoOn,
    /// The other vCPUs have to be paused first.
    NeedsPause,
    /// The vCPU resumes with the registers that a handler has set.
    Resume,
}

/// The outcome of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HitOutcome {
    /// The vCPU stands behind the instruction, or has a pending exception.
    Resume,
    /// The other vCPUs must be paused first.
    NeedsPause,
    /// No plant is there.
    NotOurs,
}

impl Engine {
    /// The plant that a vCPU executed at `rip`.
    pub(super) fn plant_at(
        &self,
        vcpu: &mut dyn Vcpu,
        rip: Gva,
    ) -> Result<Option<Arc<Plant>>, GuestError> {
        let table = self.table.load();
        if !table.may_hold(rip) {
            return Ok(None);
        }
        if let Some(plant) = table.at(rip) {
            return Ok(Some(Arc::clone(plant)));
        }
        // The same byte through another mapping: a kernel's first code runs at its load address, not at its link address.
        let state = vcpu.system_state()?;
        Ok(walk(&self.memory.as_ref(), &state.paging, rip)
            .ok()
            .and_then(|found| table.at_gpa(found.gpa).cloned()))
    }

    /// Handles the vCPU's execution of a plant's byte at `rip`.
    pub(crate) fn on_hit(&self, vcpu: &mut dyn Vcpu, rip: Gva) -> Result<HitOutcome, GuestError> {
        let outcome = self.handle_hit(vcpu, rip)?;
        Ok(self.pause_if_rewritten(vcpu, outcome))
    }

    /// If a handler has written to an instruction under a jump, requests a pause: the jump goes before the vCPU continues.
    pub(super) fn pause_if_rewritten(&self, vcpu: &dyn Vcpu, outcome: HitOutcome) -> HitOutcome {
        if outcome == HitOutcome::Resume && self.planter.has_rewritten_jumps() {
            self.resuming().insert(vcpu.index());
            return HitOutcome::NeedsPause;
        }
        outcome
    }

    fn handle_hit(&self, vcpu: &mut dyn Vcpu, rip: Gva) -> Result<HitOutcome, GuestError> {
        let plant = self.plant_at(vcpu, rip)?;
        // The byte of an open plant is the guest's own, and the vCPU executes the byte alone.
        let Some(plant) = plant.filter(|plant| !self.planter.is_open(plant.spot.gpa)) else {
            return match self.detour.left_at(rip) {
                Some(left) => self.on_left(vcpu, left),
                None => Ok(HitOutcome::NotOurs),
            };
        };
        if self.may_be_behind_outs(&plant) && vcpu.is_behind_outs()? {
            return Ok(HitOutcome::NotOurs);
        }
        match self.tell(vcpu, &plant, rip)? {
            Told::GoOn if self.may_optimise(&plant) || self.may_look_at_int3(vcpu.index()) => {
                Ok(HitOutcome::NeedsPause)
            }
            Told::GoOn => self.go_past(vcpu, &plant, rip),
            Told::NeedsPause => Ok(HitOutcome::NeedsPause),
            Told::Resume => Ok(HitOutcome::Resume),
        }
    }

    /// Whether the port write of a vCPU at `plant` may come from an `outs` in front of the plant. A probed `outs` is executed
    /// alone.
    fn may_be_behind_outs(&self, plant: &Plant) -> bool {
        if self.planter.byte() != PlantByte::Port {
            return false;
        }
        let gpa = plant.spot.gpa.0;
        if gpa.is_multiple_of(PAGE_BYTES) && self.modules.holding(plant.at).is_some() {
            // The pages of a module are not contiguous.
            return true;
        }
        let mut before = [0];
        let read = |at| self.memory.read(Gpa(at), &mut before);
        gpa.checked_sub(1)
            .map(read)
            .is_some_and(|read| read.is_ok())
            && before == [OUTSB]
    }

    /// The vCPUs whose handlers have set the registers to resume with, but that need the others paused first.
    pub(super) fn resuming(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.resuming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the hits that filters accept and calls their handlers, in the order of registration. The handlers of calls that
    /// return here run first.
    pub(super) fn tell(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        at: Gva,
    ) -> Result<Told, GuestError> {
        if !plant.returns && plant.probes.iter().all(|(probe, _)| probe.only_counts()) {
            // No probe needs a register.
            plant.probes.iter().for_each(|(probe, _)| probe.count_hit());
            return Ok(Told::GoOn);
        }
        let regs = vcpu.regs()?;
        let rip = regs.rip;
        let mut hit = HitContext::new(vcpu, &self.planter, &self.table, regs);
        hit.kernel = plant.kernel_tables(self, at);
        let (mut needs_pause, mut resumes) = (false, false);
        let (mut answer, mut copies) = (None, false);
        if plant.returns {
            hit.regs.rip = plant.at.0;
            self.leave_calls(&mut hit, plant.at)?;
        }
        for (probe, ip) in &plant.probes {
            hit.regs.rip = ip.0;
            if !self.lets_by(&mut hit, probe) {
                continue;
            }
            probe.count_hit();
            match &probe.purpose {
                Purpose::Trace => self.tell_hit(probe, hit.vcpu(), (*ip).into(), &hit.regs),
                Purpose::Count => (),
                Purpose::Aggregate(aggregated) => self.add_value(&mut hit, aggregated),
                Purpose::Handle(handler) => resumes = handler.0.pre(&mut hit) == PreOutcome::Resume,
                Purpose::Inject(injector) => resumes = self.inject(&mut hit, probe, injector),
                Purpose::Return(purpose) => {
                    needs_pause |= self.enter_call(&mut hit, probe, purpose)
                }
                Purpose::Milestone(Milestone::TaskEnded) => self.end_task(hit.vcpu)?,
                Purpose::Milestone(Milestone::TaskLeft) => self.leave_task(hit.vcpu()),
                Purpose::Milestone(Milestone::Reader(reader)) => {
                    match self.reader_needs(hit.vcpu, *reader, &hit.regs)? {
                        ReaderNeeds::Nothing => (),
                        ReaderNeeds::Pause => needs_pause = true,
                        ReaderNeeds::Answer(value) => answer = Some(value),
                        ReaderNeeds::Copy => copies = true,
                    }
                }
                Purpose::Milestone(_) => needs_pause = true,
            }
            if resumes {
                break;
            }
        }
        // The copy uses the arguments as handlers have left them.
        if copies && !resumes {
            if self.make_copy(&mut hit, plant)? {
                answer = Some(0);
            } else {
                needs_pause = true;
            }
        }
        if let Some(value) = answer.filter(|_| !resumes) {
            resumes = self.answer_call(&mut hit, value);
        }
        if !resumes {
            hit.regs.rip = rip;
        }
        if hit.changed || resumes {
            hit.vcpu.set_regs(&hit.regs)?;
        }
        Ok(match (needs_pause, resumes) {
            (false, false) => Told::GoOn,
            (false, true) => Told::Resume,
            (true, resumes) => {
                if resumes {
                    self.resuming().insert(vcpu.index());
                }
                Told::NeedsPause
            }
        })
    }

    pub(super) fn go_past(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        rip: Gva,
    ) -> Result<HitOutcome, GuestError> {
        match plant.displaced(&self.planter, rip) {
            Some(decoded) => self.emulate(vcpu, plant, &decoded),
            None => Ok(HitOutcome::NeedsPause),
        }
    }

    pub(super) fn emulate(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        decoded: &Decoded,
    ) -> Result<HitOutcome, GuestError> {
        if decoded.bytes() == [INT3] {
            if self.detour.sends_back(decoded.at()) || self.is_read_when_executed(plant, decoded) {
                return Ok(HitOutcome::NeedsPause);
            }
            if self.planter.byte() == PlantByte::Port && self.abilities.int3_exits {
                // VT-x injects #BP with the length of the last int3 that exited, so this int3 has to exit: the vCPU executes the
                // int3 in place, and the VMM then injects #BP.
                return Ok(HitOutcome::NeedsPause);
            }
            clear_resume_flag(vcpu)?;
            vcpu.inject_breakpoint(decoded.at())?;
            return Ok(HitOutcome::Resume);
        }
        match pass(
            vcpu,
            self.memory.as_ref(),
            &self.planter,
            self.abilities.features,
            plant.kernel_tables(self, decoded.at()),
            decoded,
        )? {
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
                if offered.outcome == FaultOutcome::ToGuest {
                    vcpu.inject(fault)?;
                }
                Ok(HitOutcome::Resume)
            }
            Passed::MustStep => self.relocate(vcpu, plant, decoded),
        }
    }

    /// Calls the post-handlers: the instruction has been executed.
    pub(super) fn after(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        tier: Tier,
    ) -> Result<(), GuestError> {
        for (probe, _) in &plant.probes {
            probe.passed_by(tier);
            if let Purpose::Handle(handler) = &probe.purpose
                && probe.has_hit(vcpu.index())
            {
                let regs = vcpu.regs()?;
                let mut hit = HitContext::new(vcpu, &self.planter, &self.table, regs);
                handler.0.post(&mut hit);
                let (changed, regs) = (hit.changed, hit.regs);
                if changed {
                    vcpu.set_regs(&regs)?;
                }
            }
        }
        Ok(())
    }
}
