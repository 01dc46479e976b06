//! Instructions at protected pages that the hardware executes, with the other vCPUs paused and the pages accessible.

use std::collections::BTreeSet;

use address::{Gpa, Gva};
use events::Tier;
use iced_x86::Register;
use introspect::insn::Decoded;
use introspect::{Idt, walk};
use text::{GuestError, OwnBreakpoints, Passed, Paused, RFLAGS_RF, Ran, SystemState, To, Vcpu};

use crate::engine::hits::in_place::{InPlace, PAGE_FAULT};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::protected_accesses::{PROGRAM, ProtectedAccesses, is_64_bit};
use crate::engine::uprobes::code_hit::{CodeHit, OnPage};
use crate::engine::watch::lifted::{Executed, Lifted, OperandReads};
use crate::plant::Plant;
use crate::registry::Missed;

/// RFLAGS.TF.
const TRAP_FLAG: u64 = 1 << 8;

/// Whether the debug register behind the instruction does not stop a program: the processor holds debug exceptions back behind a write of SS.
fn delays_debug_register(state: &SystemState, decoded: &Decoded) -> bool {
    state.privilege == PROGRAM && decoded.instruction().op0_register() == Register::SS
}

/// What a vCPU executes alone.
struct Lone<'p> {
    /// The address of the instruction.
    at: Gva,
    /// The vector of the event that is delivered in front of the instruction, in place of its execution.
    event: Option<u8>,
    /// The hidden plant at the instruction, with a hit.
    plant: Option<&'p Plant>,
}

impl ProtectedAccesses {
    /// Lets the hardware execute the instruction at `at`, or deliver the event in front of it, while the guest may write to protected
    /// pages. The other vCPUs are paused, and `run` runs the vCPU. Reports the watched bytes that have changed.
    ///
    /// While the vCPU waited for the pause, the watchpoints and plants may have changed. Nothing has been executed, so the vCPU resumes
    /// without a step if no page is protected, or a plant is at the instruction.
    pub(crate) fn on_paused_protected_access<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        at: Gva,
        run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<HitOutcome, GuestError> {
        if self.watches.is_lifted() {
            return Ok(HitOutcome::NotOurs);
        }
        let written = self.uprobes.hidden.take_written(vcpu.index());
        let mut hit = self.hit_at(vcpu, at)?;
        let must_look = !written.is_empty() || matches!(hit, OnPage::Outdated);
        if must_look && self.uprobes.refresh(paused, &written)? {
            return Ok(HitOutcome::Resume);
        }
        if !self.is_protecting() || self.is_elsewhere_or_planted(vcpu, at)? {
            return Ok(HitOutcome::Resume);
        }
        if must_look {
            hit = self.hit_at(vcpu, at)?;
        }
        if let OnPage::Hit(hit) = &mut hit {
            hit.state = Some(Box::new(self.uprobes.program_state(vcpu)?));
        }
        let event = vcpu.undelivered_event()?;
        self.note_reads(vcpu, &written)?;
        let lone = Lone {
            at,
            event,
            plant: None,
        };
        self.execute_lifted(vcpu, paused, &lone, hit, run)?;
        Ok(HitOutcome::Resume)
    }

    /// Looks for private copies of pages of programs, unless the instruction writes to the pages in `written`.
    fn note_reads(&self, vcpu: &mut dyn Vcpu, written: &BTreeSet<Gpa>) -> Result<(), GuestError> {
        if written.is_empty() {
            // The emulator has read no byte, and cannot say which page the instruction reads.
            let hidden = self.uprobes.hidden.table.load();
            let probes = hidden.iter().flat_map(|(_, page)| &page.probes);
            self.uprobes.copies.on_read(vcpu, probes)?;
        }
        Ok(())
    }

    /// Lets the hardware execute the instruction at a hidden plant or with a debug register, whose hit is dispatched. The other vCPUs are paused.
    pub(crate) fn on_paused_hidden_plant<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        at: Gva,
        run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<(), GuestError> {
        let written = self.uprobes.hidden.take_written(vcpu.index());
        if !written.is_empty() {
            self.uprobes.refresh(paused, &written)?;
        }
        self.note_reads(vcpu, &written)?;
        let plant = self.plants.plant_at(vcpu, at)?;
        let lone = Lone {
            at,
            event: None,
            plant: plant.as_deref(),
        };
        self.execute_lifted(vcpu, paused, &lone, OnPage::NoHit, run)
    }

    /// Runs the vCPU while the guest can access the protected pages, and reports the hit in a program and the watched bytes that have changed.
    fn execute_lifted<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        lone: &Lone<'_>,
        hit: OnPage,
        run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<(), GuestError> {
        let reads = self.reads(vcpu, lone.at, lone.event)?;
        let table = self.watches.table.load_full();
        let memory = self.running.memory.as_ref();
        let lifted = Lifted::new(table, &memory, vcpu.regs()?, lone.event);
        self.watches.protections.lift(paused, true)?;
        *self.watches.lock() = Some(lifted);
        let stepped = self.step(vcpu, paused, lone, run);
        let lifted = self.watches.lock().take();
        self.watches.protections.lift(paused, false)?;
        let (executed, in_place) = stepped?;
        if executed == Executed::Many {
            self.uprobes.miss_all();
            if !matches!(in_place, InPlace::Faulted { .. }) {
                self.miss_hidden_plants();
            }
        } else if let (OnPage::Hit(hit), InPlace::Executed) = (hit, in_place) {
            self.read_again(vcpu, &hit)?;
            self.uprobes.report(vcpu, &hit, Tier::Stepped)?;
        }
        if let Some(lifted) = lifted {
            let is_begun = vcpu.regs()?.rcx != lifted.regs.rcx;
            let reads = match (in_place, &reads) {
                (InPlace::Executed | InPlace::Unknown, _) => reads,
                // The instruction has been executed in part, or may have been.
                (_, OperandReads::Repeated) if is_begun => reads,
                (_, OperandReads::Unknown) => reads,
                // The instruction is executed later.
                (InPlace::Faulted { .. } | InPlace::NotExecuted, _) => OperandReads::NONE,
            };
            self.watches.end_lifted(vcpu, &lifted, executed, &reads)?;
        }
        Ok(())
    }

    /// Counts for each hidden plant, and for each probe in a debug register, that an execution may have been missed: the debug registers are off
    /// while a vCPU runs alone.
    fn miss_hidden_plants(&self) {
        if !self.running.hides_plants() {
            return;
        }
        let table = self.plants.table.load();
        let plants = table.plants().chain(table.only());
        let probes = plants.flat_map(|plant| &plant.probes);
        probes.for_each(|(probe, _)| probe.counters.miss(Missed::Unprotected));
    }

    /// The memory that the instruction at `at` reads. The delivery of an event reads no watched bytes.
    fn reads(
        &self,
        vcpu: &mut dyn Vcpu,
        at: Gva,
        event: Option<u8>,
    ) -> Result<OperandReads, GuestError> {
        if event.is_some() {
            return Ok(OperandReads::NONE);
        }
        let state = vcpu.system_state()?;
        let decoded = self.instruction_at(&state, at);
        self.watches
            .reads_of(vcpu, decoded.as_ref().map(|(decoded, _)| decoded))
    }

    /// The probes in programs at the instruction at `at`.
    fn hit_at(&self, vcpu: &mut dyn Vcpu, at: Gva) -> Result<OnPage, GuestError> {
        let state = vcpu.system_state()?;
        match self.spot_of(&state, at) {
            Some(spot) => {
                let decoded = self.instruction_at(&state, at);
                let decoded = decoded.as_ref().map(|(decoded, _)| decoded);
                self.uprobes.at_instruction(vcpu, spot.gpa, decoded)
            }
            None => Ok(OnPage::NoHit),
        }
    }

    /// Whether the vCPU no longer stands at `at`, or would execute a plant there. A pending event comes before the plant.
    fn is_elsewhere_or_planted(&self, vcpu: &mut dyn Vcpu, at: Gva) -> Result<bool, GuestError> {
        if vcpu.regs()?.rip != at.0 {
            return Ok(true);
        }
        if vcpu.undelivered_event()?.is_some() {
            return Ok(false);
        }
        let state = vcpu.system_state()?;
        if self.running.hides_plants() && !is_64_bit(&state) {
            // No plant is in 32-bit code.
            return Ok(false);
        }
        if self.running.probes_in_registers() && self.plants.in_register_at(at).is_some() {
            // The vCPU has begun to execute the instruction, with RF set or before the probe was there.
            return Ok(false);
        }
        let plant = self.plants.plant_at(vcpu, at)?;
        // Memory shows the original byte to a vCPU that runs alone behind its hit, and while the guest reads the byte.
        let planter = &self.running.planter;
        let is_shown = |gpa| !planter.is_open(gpa) && !planter.is_withdrawn(gpa);
        Ok(plant.is_some_and(|plant| is_shown(plant.spot.gpa)))
    }

    /// Runs the vCPU up to a stop behind the instruction, or behind the delivery of the event in front of the instruction.
    fn step<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        lone: &Lone<'_>,
        mut run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<(Executed, InPlace), GuestError> {
        let at = lone.at;
        if let Some(vector) = lone.event {
            let executed = self.deliver(vcpu, paused, vector, run)?;
            return Ok((executed, InPlace::NotExecuted));
        }
        let state = vcpu.system_state()?;
        let (decoded, spot) = match self.instruction_at(&state, at) {
            Some((decoded, spot)) => (Some(decoded), spot),
            None => (None, self.spot_of(&state, at)),
        };
        let Some(spot) = spot else {
            // The instruction is in the detour region, where no stop can be.
            run(vcpu, To::Next(&[]))?;
            return Ok((Executed::Many, InPlace::Unknown));
        };
        let own = OwnBreakpoints::new(vcpu.debug_registers()?);
        if is_64_bit(&state) && own.at_instruction(at) != 0 {
            // The breakpoint has fired, and is not to fire again.
            let mut regs = vcpu.regs()?;
            regs.rflags |= RFLAGS_RF;
            vcpu.set_regs(&regs)?;
        }
        let unprobed = Plant::new(at, spot);
        let plant = lone.plant.unwrap_or(&unprobed);
        let mut ran = Ran::Nowhere;
        let mut run = |vcpu: &mut V, to: To<'_>| {
            ran = run(vcpu, to)?;
            Ok(ran)
        };
        let executor = &self.executor;
        let in_place =
            executor.execute_in_place(vcpu, paused, plant, decoded.as_ref(), at, &mut run)?;
        // Without the instruction's length, no stop is behind the instruction, but only at handlers.
        let is_stopped = |decoded: &Decoded| !delays_debug_register(&state, decoded);
        let has_stop = decoded.as_ref().is_some_and(is_stopped);
        if ran == Ran::Nowhere && has_stop && vcpu.regs()?.rip == at.0 {
            // The instruction is not finished: a repeated one has been executed in part.
            return Ok((Executed::One, InPlace::NotExecuted));
        }
        let vector = Some(PAGE_FAULT);
        if in_place == (InPlace::Faulted { vector }) && spot.beyond.is_none() {
            // The instruction may end on a page that is not in memory yet.
            return Ok((Executed::One, in_place));
        }
        let has_stop = has_stop && in_place != InPlace::Unknown;
        Ok((Executed::after(ran, has_stop), in_place))
    }

    /// Runs the vCPU up to the first instruction of the guest's handler for `vector`.
    fn deliver<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        vector: u8,
        mut run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<Executed, GuestError> {
        let paging = vcpu.system_state()?.paging;
        let sregs = vcpu.sregs()?;
        let idt = Idt {
            base: Gva(sregs.idt.base),
            limit: sregs.idt.limit,
        };
        let planter = &self.running.planter;
        let target = idt.target(planter, &paging, vector);
        let found = target.and_then(|target| walk(planter, &paging, target).ok());
        let stops: Vec<_> = found.iter().map(|found| found.gpa).collect();
        let shown = planter.show_alone(paused, &[], &stops)?;
        let ran = run(vcpu, To::Next(target.as_slice()));
        shown.end()?;
        Ok(Executed::after(ran?, found.is_some()))
    }

    /// Lets the emulator execute an instruction once more that the hardware has executed, and that has read the counter of probed marks. An
    /// instruction that only reads may be executed twice, and the hardware has set the accessed bits for which the emulator waits.
    fn read_again(&self, vcpu: &mut dyn Vcpu, hit: &CodeHit) -> Result<(), GuestError> {
        let Some(counter) = &hit.counter else {
            return Ok(());
        };
        let (before, after) = (hit.regs, vcpu.regs()?);
        let state = vcpu.system_state()?;
        let found = self.instruction_at(&state, Gva(before.rip));
        // A single-stepped program has gone on into the kernel.
        let decoded = found.filter(|(decoded, _)| decoded.next() == Gva(after.rip));
        if let Some((decoded, _)) = decoded.filter(|_| before.rflags & TRAP_FLAG == 0) {
            vcpu.set_regs(&before)?;
            if matches!(self.pass_raised(vcpu, &decoded, counter)?, Passed::Emulated) {
                return Ok(());
            }
            vcpu.set_regs(&after)?;
        }
        counter.miss();
        Ok(())
    }
}
