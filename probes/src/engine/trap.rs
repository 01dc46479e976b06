//! The trap handler: dispatches each trap to the engine.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use introspect::insn::Decoded;
use introspect::{Gpa, Gva, walk};
use vmm::{MSR_LSTAR, PausedGuard, StoppedVcpu, Trap, TrapError, TrapHandler, TrapOutcome};

use super::Engine;
use super::jumps::INT3;
use super::readers::ReaderNeeds;
use crate::Tier;
use crate::guest::{GuestError, KvmVcpu, Paused, Ran, To, Vcpu};
use crate::handler::{FaultOutcome, HitContext, PreOutcome};
use crate::hit::{DebugUse, KernelTables, Passed, Plant, RFLAGS_RF, own_instruction, pass};
use crate::plant::{PlantByte, Spot, Written};
use crate::registry::{Milestone, Purpose};

const PAGE_BYTES: u64 = 4096;
/// The opcode of `outs` with bytes, which ends the instruction.
const OUTSB: u8 = 0x6e;

/// The result of the handlers of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
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
    fn plant_at(&self, vcpu: &mut dyn Vcpu, rip: Gva) -> Result<Option<Arc<Plant>>, GuestError> {
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
    fn pause_if_rewritten(&self, vcpu: &dyn Vcpu, outcome: HitOutcome) -> HitOutcome {
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
    fn resuming(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.resuming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the hits that filters accept and calls their handlers, in the order of registration. The handlers of calls that
    /// return here run first.
    fn tell(&self, vcpu: &mut dyn Vcpu, plant: &Plant, at: Gva) -> Result<Told, GuestError> {
        if !plant.returns && plant.probes.iter().all(|(probe, _)| probe.only_counts()) {
            // No probe needs a register.
            plant.probes.iter().for_each(|(probe, _)| probe.count_hit());
            return Ok(Told::GoOn);
        }
        let regs = vcpu.regs()?;
        let rip = regs.rip;
        let mut hit = HitContext::new(vcpu, &self.planter, &self.table, regs);
        hit.kernel = KernelTables::for_hit(self, plant, at);
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

    fn go_past(
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

    fn emulate(
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
            KernelTables::for_hit(self, plant, decoded.at()),
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

    /// Handles a hit that needs the other vCPUs paused, with the others paused: `run` runs the vCPU up to the next of the given
    /// stops.
    ///
    /// While this vCPU waited for its turn, the plant may have been removed: then the guest continues with its own instruction,
    /// or behind the instruction if the emulator supports it.
    pub(crate) fn on_paused_hit<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        rip: Gva,
        run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<HitOutcome, GuestError> {
        self.remove_rewritten_jumps(paused)?;
        let outcome = self.handle_paused_hit(vcpu, paused, rip, run)?;
        // The jumps over instructions that a post-handler has written to.
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
                // A handler that skips the function does not undo what the kernel did before the call.
                if plant.has_milestone(Milestone::BootPatched) {
                    self.on_boot_patched(vcpu, paused)?;
                }
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
            self.reach_milestones(vcpu, paused, &plant)?;
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

    /// Handles a hit of a debug register of hyprobe at `rip`.
    pub(super) fn on_debug_hit(
        &self,
        vcpu: &mut dyn Vcpu,
        fired: u8,
        rip: Gva,
    ) -> Result<HitOutcome, GuestError> {
        let table = self.table.load();
        let used = (0..4).filter(|i| fired & (1 << i) != 0).find_map(|i| {
            table.debug[i]
                .as_ref()
                .filter(|used| used.plant().at == rip)
        });
        match used {
            None => Ok(HitOutcome::NotOurs),
            // The plant returns, and is hit.
            Some(DebugUse::StandIn(_)) => Ok(HitOutcome::NeedsPause),
            Some(DebugUse::Only(plant)) => {
                let outcome = match self.tell(vcpu, plant, rip)? {
                    Told::Resume => HitOutcome::Resume,
                    Told::NeedsPause => HitOutcome::NeedsPause,
                    Told::GoOn => match own_instruction(&self.planter, plant.spot, rip) {
                        // Behind a debug register, KVM does not know the length of the int3 for certain.
                        Some(decoded) if decoded.bytes() != [INT3] => {
                            self.emulate(vcpu, plant, &decoded)?
                        }
                        _ => HitOutcome::NeedsPause,
                    },
                };
                Ok(self.pause_if_rewritten(vcpu, outcome))
            }
        }
    }

    /// Handles a hit of a debug register of hyprobe at `rip`, with the other vCPUs paused.
    pub(super) fn on_paused_debug_hit<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        rip: Gva,
        mut run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<(), GuestError> {
        self.remove_rewritten_jumps(paused)?;
        clear_resume_flag(vcpu)?;
        if self.end_stand_in(paused, rip)? {
            return Ok(());
        }
        let resumes = self.resuming().remove(&vcpu.index());
        let table = self.table.load_full();
        let only = table
            .debug
            .iter()
            .flatten()
            .map(DebugUse::plant)
            .find(|plant| plant.at == rip);
        if let Some(plant) = only {
            self.reach_milestones(vcpu, paused, plant)?;
            self.plant_return_sites(paused, plant);
        }
        match only {
            // Debug registers are off while a vCPU executes one instruction alone.
            Some(plant) if !resumes => {
                let decoded = own_instruction(&self.planter, plant.spot, rip);
                self.execute_in_place(vcpu, paused, plant, decoded.as_ref(), rip, &mut run)?;
                self.remove_rewritten_jumps(paused)
            }
            _ => Ok(()),
        }
    }

    /// Handles a guest write to a read-only page.
    pub(crate) fn on_guest_write(&self, gpa: Gpa, data: &[u8]) -> Result<Written, GuestError> {
        let written = self.planter.guest_write(gpa, data)?;
        if written == Written::Merged {
            let table = self.table.load();
            for plant in table.touched(gpa, data.len()) {
                plant.refresh(&self.planter);
            }
            self.reopen(&table, gpa, data.len());
            let ring = self.detour.ring();
            self.return_sites
                .landings
                .guest_has_written(ring.as_deref(), gpa, data.len())?;
        }
        Ok(written)
    }

    fn handle(&self, stopped: &mut StoppedVcpu<'_>, trap: Trap) -> Result<TrapOutcome, GuestError> {
        let vcpu = &mut KvmVcpu(stopped);
        let hit = match (trap, self.planter.byte()) {
            (Trap::PortWrite { at }, PlantByte::Port)
            | (Trap::Breakpoint { at }, PlantByte::Int3) => self.on_hit(vcpu, Gva(at))?,
            (Trap::HardwareBreakpoint { fired, at }, _) => {
                self.on_debug_hit(vcpu, fired, Gva(at))?
            }
            (Trap::GuestWrite { gpa, bytes, len }, _) => {
                if self.is_detour_write(Gpa(gpa.0)) {
                    return Ok(TrapOutcome::Resume);
                }
                let (gpa, data) = (Gpa(gpa.0), &bytes[..len.min(8)]);
                if self.planter.overwrites_jump(gpa, data)
                    || self.wants_stand_in(gpa, data)
                    || self.patches_int3_handler(gpa, data.len())
                {
                    return Ok(TrapOutcome::Exclusive);
                }
                return Ok(
                    match self.on_guest_write(Gpa(gpa.0), &bytes[..len.min(8)])? {
                        Written::Merged => TrapOutcome::Resume,
                        Written::NotOurs => TrapOutcome::Reinject,
                    },
                );
            }
            (
                Trap::MsrWrite {
                    index: MSR_LSTAR, ..
                },
                _,
            ) if self.awaits_kernel() => {
                return Ok(TrapOutcome::Exclusive);
            }
            (Trap::Breakpoint { .. }, PlantByte::Port) => {
                self.int3_exits.fetch_add(1, Ordering::Relaxed);
                HitOutcome::NotOurs
            }
            _ => HitOutcome::NotOurs,
        };
        Ok(match hit {
            HitOutcome::Resume => TrapOutcome::Resume,
            HitOutcome::NeedsPause => TrapOutcome::Exclusive,
            HitOutcome::NotOurs => TrapOutcome::Reinject,
        })
    }

    fn handle_exclusive(
        &self,
        stopped: &mut StoppedVcpu<'_>,
        paused: &PausedGuard<'_>,
        trap: Trap,
    ) -> Result<TrapOutcome, GuestError> {
        let vcpu = &mut KvmVcpu(stopped);
        let run = |vcpu: &mut KvmVcpu<'_, '_>, to: To<'_>| vcpu.run_alone(paused, self, to);
        match trap {
            Trap::PortWrite { at } | Trap::Breakpoint { at } => {
                self.on_paused_hit(vcpu, paused, Gva(at), run)?;
                Ok(TrapOutcome::Resume)
            }
            Trap::HardwareBreakpoint { at, .. } => {
                self.on_paused_debug_hit(vcpu, paused, Gva(at), run)?;
                Ok(TrapOutcome::Resume)
            }
            Trap::GuestWrite { gpa, bytes, len } => {
                let data = &bytes[..len.min(8)];
                self.make_room_for_write(paused, Gpa(gpa.0), data)?;
                if self.wants_stand_in(Gpa(gpa.0), data) {
                    self.stand_in(paused, Gpa(gpa.0), data.len())?;
                }
                Ok(
                    match self.on_guest_write(Gpa(gpa.0), &bytes[..len.min(8)])? {
                        Written::Merged => TrapOutcome::Resume,
                        Written::NotOurs => TrapOutcome::Reinject,
                    },
                )
            }
            Trap::MsrWrite {
                index: MSR_LSTAR,
                value,
            } => {
                self.locate(vcpu, paused, Gva(value))?;
                Ok(TrapOutcome::Reinject)
            }
            _ => Ok(TrapOutcome::Reinject),
        }
    }
}

/// Clears RF after a debug register has fired or an `int3` has been executed: RF was clear before. A set RF would keep the next
/// debug register from firing, possibly only after the guest's handler has returned with the saved flags.
fn clear_resume_flag(vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
    let mut regs = vcpu.regs()?;
    if regs.rflags & RFLAGS_RF != 0 {
        regs.rflags &= !RFLAGS_RF;
        vcpu.set_regs(&regs)?;
    }
    Ok(())
}

/// The name of the trap, for errors.
fn name(trap: Trap) -> &'static str {
    match trap {
        Trap::Breakpoint { .. } | Trap::PortWrite { .. } => "a probe hit",
        Trap::HardwareBreakpoint { .. } => "a debug register",
        Trap::GuestWrite { .. } => "a guest write to a probed page",
        Trap::MsrWrite { .. } => "the write of an MSR",
        Trap::EmulationFailure => "an instruction that KVM cannot emulate",
    }
}

impl TrapHandler for Engine {
    fn on_trap(&self, vcpu: &mut StoppedVcpu<'_>, trap: Trap) -> Result<TrapOutcome, TrapError> {
        self.handle(vcpu, trap).map_err(|source| TrapError {
            what: name(trap),
            vcpu: vcpu.index(),
            rip: vcpu.regs().map(|regs| regs.rip).unwrap_or(0),
            source: source.into(),
        })
    }

    fn on_exclusive(
        &self,
        vcpu: &mut StoppedVcpu<'_>,
        paused: &PausedGuard<'_>,
        trap: Trap,
    ) -> Result<TrapOutcome, TrapError> {
        self.handle_exclusive(vcpu, paused, trap)
            .map_err(|source| TrapError {
                what: name(trap),
                vcpu: vcpu.index(),
                rip: vcpu.regs().map(|regs| regs.rip).unwrap_or(0),
                source: source.into(),
            })
    }
}
