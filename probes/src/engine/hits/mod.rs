//! Hits of plants: counts them, calls their handlers, and moves the vCPU past the displaced instruction.

pub(crate) mod executor;
pub(crate) mod in_place;
pub(crate) mod inject;
pub(crate) mod outcome;
pub(crate) mod own_jumps;
pub(crate) mod paused;
pub(crate) mod reader_copy;
pub(crate) mod readers;
pub(crate) mod relocate;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva, PAGE_BYTES};
use detour::{Detour, LeftAt};
use text::{GuestError, PlantByte, RFLAGS_RF, Vcpu};

use crate::debug_registers::DebugUse;
use crate::engine::hit_arguments::HitArguments;
use crate::engine::hits::executor::Executor;
use crate::engine::hits::outcome::{HitDisposition, HitOutcome};
use crate::engine::hits::readers::{ReaderNeeds, Readers};
use crate::engine::optimise::Optimiser;
use crate::engine::plants::Plants;
use crate::engine::programs::Programs;
use crate::engine::records::{Owner, Records};
use crate::engine::reporter::Reporter;
use crate::engine::returns::Returns;
use crate::engine::running::{INT3, Running};
use crate::engine::task_watch::TaskWatch;
use crate::engine::tasks::{Position, Tasks};
use crate::engine::uprobes::Uprobes;
use crate::handler::{HitContext, PreOutcome};
use crate::plant::{Plant, own_instruction};
use crate::registry::{KernelEvent, Missed, Purpose};

/// The opcode of `outs` with bytes, which ends the instruction.
const OUTSB: u8 = 0x6e;

/// Handles hits on the thread of their vCPU, while the other vCPUs run.
#[derive(Debug)]
pub(crate) struct Hits {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) detour: Arc<Detour>,
    pub(crate) programs: Arc<Programs>,
    pub(crate) records: Arc<Records>,
    pub(crate) optimiser: Arc<Optimiser>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) returns: Arc<Returns>,
    pub(crate) uprobes: Arc<Uprobes>,
    pub(crate) task_watch: Arc<TaskWatch>,
    /// vCPUs that resume with their present registers after a pause: see [`resuming`](Self::resuming).
    pub(crate) resuming: Mutex<BTreeSet<usize>>,
}

impl Hits {
    /// Handles the vCPU's execution of a plant's byte at `rip`.
    pub(crate) fn on_hit(&self, vcpu: &mut dyn Vcpu, rip: Gva) -> Result<HitOutcome, GuestError> {
        let outcome = self.handle_hit(vcpu, rip)?;
        Ok(self.pause_if_rewritten(vcpu, outcome))
    }

    /// If a handler has written to an instruction under a jump, requests a pause: the jump goes before the vCPU continues.
    pub(crate) fn pause_if_rewritten(&self, vcpu: &dyn Vcpu, outcome: HitOutcome) -> HitOutcome {
        if outcome == HitOutcome::Resume && !self.running.planter.rewritten_jumps().is_empty() {
            self.resuming().insert(vcpu.index());
            return HitOutcome::NeedsPause;
        }
        outcome
    }

    fn handle_hit(&self, vcpu: &mut dyn Vcpu, rip: Gva) -> Result<HitOutcome, GuestError> {
        if self.running.hides_plants() {
            // The instruction is the guest's own.
            return Ok(HitOutcome::NotOurs);
        }
        let plant = self.plants.plant_at(vcpu, rip)?;
        // The byte of an open plant is the guest's own, and the vCPU executes the byte alone.
        let Some(plant) = plant.filter(|plant| !self.running.planter.is_open(plant.spot.gpa))
        else {
            return match self.detour.left_at(rip) {
                Some(left) => self.on_left(vcpu, left),
                None => Ok(HitOutcome::NotOurs),
            };
        };
        if self.may_be_behind_outs(&plant) && vcpu.is_behind_outs()? {
            return Ok(HitOutcome::NotOurs);
        }
        self.handle_plant(vcpu, &plant, rip)
    }

    /// Handles a hit of a hidden plant: the vCPU is about to execute the instruction at `rip`.
    pub(crate) fn on_hidden_plant(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        rip: Gva,
    ) -> Result<HitOutcome, GuestError> {
        let outcome = self.handle_plant(vcpu, plant, rip)?;
        Ok(self.pause_if_rewritten(vcpu, outcome))
    }

    fn handle_plant(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        rip: Gva,
    ) -> Result<HitOutcome, GuestError> {
        match self.dispatch_hit(vcpu, plant, rip)? {
            HitDisposition::GoOn
                if self.optimiser.may_optimise(plant)
                    || self.optimiser.may_look_at_int3(vcpu.index()) =>
            {
                Ok(HitOutcome::NeedsPause)
            }
            HitDisposition::GoOn => self.executor.go_past(vcpu, plant, rip),
            HitDisposition::NeedsPause => Ok(HitOutcome::NeedsPause),
            HitDisposition::Resume => Ok(HitOutcome::Resume),
        }
    }

    /// Whether the port write of a vCPU at `plant` may come from an `outs` in front of the plant. A probed `outs` is executed
    /// alone.
    fn may_be_behind_outs(&self, plant: &Plant) -> bool {
        if self.running.planter.byte() != PlantByte::Port {
            return false;
        }
        let gpa = plant.spot.gpa.0;
        if gpa.is_multiple_of(PAGE_BYTES) && self.running.modules.holding(plant.at).is_some() {
            // The pages of a module are not contiguous.
            return true;
        }
        let mut before = [0];
        let read = |at| self.running.memory.read(Gpa(at), &mut before);
        gpa.checked_sub(1)
            .map(read)
            .is_some_and(|read| read.is_ok())
            && before == [OUTSB]
    }

    /// The vCPUs whose handlers have set the registers to resume with, but that need the others paused first.
    pub(crate) fn resuming(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.resuming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the hits that filters accept and calls their handlers, in the order of registration. The handlers of calls that
    /// return here run first.
    pub(crate) fn dispatch_hit(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        at: Gva,
    ) -> Result<HitDisposition, GuestError> {
        if !plant.returns && plant.probes.iter().all(|(probe, _)| probe.only_counts()) {
            // No probe needs a register.
            plant
                .probes
                .iter()
                .for_each(|(probe, _)| probe.counters.count_hit());
            return Ok(HitDisposition::GoOn);
        }
        let regs = vcpu.regs()?;
        let rip = regs.rip;
        let mut hit = HitContext::new(vcpu, &self.running.planter, &self.plants.table, regs);
        hit.kernel = plant.kernel_tables(&*self.executor, at);
        let (mut needs_pause, mut resumes) = (false, false);
        let (mut answer, mut copies) = (None, false);
        if plant.returns {
            hit.regs.rip = plant.at.0;
            self.returns.leave_calls(&mut hit, plant.at)?;
        }
        for (probe, ip) in &plant.probes {
            hit.regs.rip = ip.0;
            let mut arguments = HitArguments::new(probe, &self.reporter);
            if !self.programs.accepts(&mut hit, probe, &mut arguments) {
                continue;
            }
            probe.counters.count_hit();
            match &probe.purpose {
                Purpose::Trace => {
                    self.records
                        .emit_hit(&mut hit, probe, *ip, arguments, None)?;
                }
                Purpose::Count => (),
                Purpose::Aggregate(aggregated) => {
                    let position = Position::At(*ip);
                    if !self
                        .programs
                        .add_value(&mut hit, position, &mut arguments, aggregated)
                    {
                        probe.counters.miss(Missed::UnknownTask);
                    }
                }
                Purpose::Handle(handler) => resumes = handler.0.pre(&mut hit) == PreOutcome::Resume,
                Purpose::Inject(injector) => resumes = self.inject(&mut hit, probe, injector),
                Purpose::Return(purpose) => {
                    needs_pause |= self.returns.enter_call(&mut hit, probe, purpose)
                }
                Purpose::KernelEvent(KernelEvent::TaskEnded) => self.returns.end_task(hit.vcpu)?,
                Purpose::KernelEvent(KernelEvent::TaskLeft) => self.returns.leave_task(hit.vcpu()),
                Purpose::KernelEvent(KernelEvent::TaskFreed) => {
                    needs_pause |= self.task_watch.concerns_end(&hit.regs);
                }
                Purpose::KernelEvent(KernelEvent::TaskStarted) => {
                    needs_pause |= self.task_watch.concerns_start(&hit.regs);
                }
                Purpose::KernelEvent(KernelEvent::Reader(reader)) => {
                    match self.readers.reader_needs(hit.vcpu, *reader, &hit.regs)? {
                        ReaderNeeds::Nothing => (),
                        ReaderNeeds::Pause => needs_pause = true,
                        ReaderNeeds::Answer(value) => answer = Some(value),
                        ReaderNeeds::Copy => copies = true,
                    }
                }
                Purpose::KernelEvent(KernelEvent::File(event)) => {
                    needs_pause |= self.uprobes.concerns(*event, &hit.regs);
                }
                Purpose::KernelEvent(_) => needs_pause = true,
            }
            if resumes {
                break;
            }
        }
        // The copy uses the arguments as handlers have left them.
        if copies && !resumes {
            if self.readers.make_copy(&mut hit, plant)? {
                answer = Some(0);
            } else {
                needs_pause = true;
            }
        }
        if let Some(value) = answer.filter(|_| !resumes) {
            resumes = self.readers.answer_call(&mut hit, value);
        }
        match resumes {
            // The flag belongs to the instruction that is not executed.
            true => hit.regs.rflags &= !RFLAGS_RF,
            false => hit.regs.rip = rip,
        }
        if hit.changed || resumes {
            hit.vcpu.set_regs(&hit.regs)?;
        }
        Ok(match (needs_pause, resumes) {
            (false, false) => HitDisposition::GoOn,
            (false, true) => HitDisposition::Resume,
            (true, resumes) => {
                if resumes {
                    self.resuming().insert(vcpu.index());
                }
                HitDisposition::NeedsPause
            }
        })
    }

    /// Handles a hit of a debug register of hyprobe at `rip`.
    pub(crate) fn on_debug_hit(
        &self,
        vcpu: &mut dyn Vcpu,
        fired: u8,
        rip: Gva,
    ) -> Result<HitOutcome, GuestError> {
        let table = self.plants.table.load();
        let used = (0..4).filter(|i| fired & (1 << i) != 0).find_map(|i| {
            let used = table.debug[i].as_ref()?;
            let plant = used.plant().filter(|plant| plant.at == rip)?;
            Some((used, plant))
        });
        if let Some((_, plant)) = used
            && !self.plants.executes(vcpu, plant)?
        {
            if self.running.abilities.interprets && vcpu.system_state()?.privilege == 0 {
                // KVM's emulator would report the breakpoint in spite of RF: the instruction runs alone.
                return Ok(HitOutcome::NeedsPause);
            }
            let mut regs = vcpu.regs()?;
            regs.rflags |= RFLAGS_RF;
            vcpu.set_regs(&regs)?;
            return Ok(HitOutcome::Resume);
        }
        match used {
            // Or only watched data.
            None | Some((DebugUse::Data(_), _)) => Ok(HitOutcome::NotOurs),
            // The plant returns, and is hit.
            Some((DebugUse::StandIn(_), _)) => Ok(HitOutcome::NeedsPause),
            Some((DebugUse::Only(_), plant)) => {
                // KVM's emulator reports a breakpoint although RF is set, and the processor does not: the guest returns to an
                // instruction that has been hit, and has faulted. At an exit, a VT-x shows RF set.
                let is_again = self.running.probes_in_registers()
                    && self.running.abilities.interprets
                    && vcpu.regs()?.rflags & RFLAGS_RF != 0;
                let disposition = match is_again {
                    true => HitDisposition::GoOn,
                    false => self.dispatch_hit(vcpu, plant, rip)?,
                };
                let outcome = match disposition {
                    HitDisposition::Resume => HitOutcome::Resume,
                    HitDisposition::NeedsPause => HitOutcome::NeedsPause,
                    HitDisposition::GoOn => {
                        match own_instruction(&self.running.planter, plant.spot, rip) {
                            // Behind a debug register, KVM does not know the length of the int3 for certain.
                            Some(decoded) if decoded.bytes() != [INT3] => {
                                self.executor.emulate(vcpu, plant, &decoded)?
                            }
                            _ => HitOutcome::NeedsPause,
                        }
                    }
                };
                Ok(self.pause_if_rewritten(vcpu, outcome))
            }
        }
    }

    /// Handles a VM exit from a detour part, which found the ring full or calls a handler. Reports the records in the ring, then
    /// the hit of this part. The parts behind it run afterwards, in the guest.
    pub(crate) fn on_left(
        &self,
        vcpu: &mut dyn Vcpu,
        left: LeftAt,
    ) -> Result<HitOutcome, GuestError> {
        self.records.open_ring(vcpu)?;
        self.records.take_out_records();
        let regs = vcpu.regs()?;
        let mut hit = HitContext::new(vcpu, &self.running.planter, &self.plants.table, regs);
        let owner = self.records.owners().get(&left.part_number).cloned();
        let (mut resumes, mut needs_pause) = (false, false);
        match owner {
            // A trace probe's record is reported after the probe was disabled, too.
            Some(Owner::Probe { probe, ip })
                if probe.planted_at().is_some() || matches!(probe.purpose, Purpose::Trace) =>
            {
                probe.counters.count_hit();
                hit.regs.rip = ip.0;
                match &probe.purpose {
                    Purpose::Trace => {
                        let arguments = HitArguments::new(&probe, &self.reporter);
                        self.records
                            .emit_hit(&mut hit, &probe, ip, arguments, None)?;
                    }
                    Purpose::Handle(handler) => {
                        resumes = handler.0.pre(&mut hit) == PreOutcome::Resume;
                    }
                    Purpose::Return(purpose) => {
                        needs_pause = self.returns.enter_call(&mut hit, &probe, purpose);
                    }
                    // Detours of other purposes do not exit.
                    _ => (),
                }
            }
            Some(Owner::Returns(site)) => {
                hit.regs.rip = site.0;
                self.returns.leave_calls(&mut hit, site)?;
            }
            // The probe was disabled after the vCPU or task entered the detour.
            Some(Owner::Probe { probe, .. }) => {
                // Each followed call is a hit, even if missed.
                if matches!(probe.purpose, Purpose::Return(_)) {
                    probe.counters.count_recorded();
                }
                probe.counters.count_exit();
                probe.counters.miss(Missed::Disarmed);
            }
            // The probe was removed: none of its counters is left.
            Some(Owner::Gone) | None => (),
        }
        if needs_pause {
            return Ok(HitOutcome::NeedsPause);
        }
        if !resumes {
            hit.regs.rip = left.on.0;
        }
        let regs = hit.regs;
        vcpu.set_regs(&regs)?;
        Ok(HitOutcome::Resume)
    }
}
