//! Exits at protected pages: the emulator executes the instruction, or the hardware does, with the other vCPUs paused.

use std::sync::Arc;

use address::{Gpa, Gva, PAGE_BYTES};
use events::Tier;
use iced_x86::Register;
use introspect::insn::{Decoded, MAX_LENGTH_BYTES, decode};
use introspect::{Idt, walk};
use text::{GuestError, Passed, Paused, Ran, Spot, SystemState, To, Vcpu};

use crate::engine::hits::executor::Executor;
use crate::engine::hits::in_place::{InPlace, PAGE_FAULT};
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::plants::Plants;
use crate::engine::running::Running;
use crate::engine::uprobes::Uprobes;
use crate::engine::uprobes::code_hit::{CodeHit, OnPage};
use crate::engine::uprobes::mark_counter::{RaisedCounter, ReadCounter};
use crate::engine::watch::Watches;
use crate::engine::watch::lifted::Lifted;
use crate::plant_table::{Plant, own_instruction};
use crate::registry::Missed;

/// The privilege level of programs.
const PROGRAM: u8 = 3;
/// CS.L in the attributes of a segment: 64-bit code.
const LONG_MODE: u16 = 1 << 13;

/// The instructions that the hardware has executed while the guest could write to protected pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executed {
    /// The instruction, or the delivery of an event, up to the stop behind it.
    One,
    /// Any number: a write may have replaced the value of another write.
    Many,
}

impl Executed {
    /// The result of a run that ended with `ran`. `has_stop` is whether a stop was behind the instruction.
    fn after(ran: Ran, has_stop: bool) -> Self {
        match ran {
            Ran::At(_) if has_stop => Self::One,
            Ran::At(_) | Ran::Nowhere | Ran::Ended => Self::Many,
        }
    }
}

/// Handles exits at protected pages.
#[derive(Debug)]
pub(crate) struct ProtectedAccesses {
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) uprobes: Arc<Uprobes>,
}

/// Whether the debug register behind the instruction does not stop a program: the processor holds debug exceptions back behind a write of SS.
fn delays_debug_register(state: &SystemState, decoded: &Decoded) -> bool {
    state.privilege == PROGRAM && decoded.instruction().op0_register() == Register::SS
}

/// RFLAGS.TF.
const TRAP_FLAG: u64 = 1 << 8;
/// The most instructions that one exit of a program executes: interrupts for the vCPU wait as long.
const MOST_EMULATED: usize = 256;

impl ProtectedAccesses {
    /// Emulates the instruction at `at`, which accesses a protected page, on the vCPU's thread, and the following instructions on hidden
    /// pages. Nothing has been executed: if the page is no longer protected, the vCPU resumes, and exits again if the page is missing.
    pub(crate) fn on_protected_access(
        &self,
        vcpu: &mut dyn Vcpu,
        at: Gva,
    ) -> Result<HitOutcome, GuestError> {
        if self.watches.is_lifted() {
            return Ok(HitOutcome::NotOurs);
        }
        if !self.is_protecting() {
            return Ok(HitOutcome::Resume);
        }
        if vcpu.undelivered_event()?.is_some() {
            return Ok(HitOutcome::NeedsPause);
        }
        let mut at = at;
        for number in 0..MOST_EMULATED {
            let state = vcpu.system_state()?;
            let Some((decoded, spot)) = self.instruction_at(&state, at) else {
                return Ok(match number {
                    0 => HitOutcome::NeedsPause,
                    // The hardware raises the fault of a fetch that is not allowed.
                    _ => HitOutcome::Resume,
                });
            };
            let code = self.hidden_code(spot);
            match code {
                None if number > 0 => return Ok(HitOutcome::Resume),
                Some(gpa) if number == 0 => self.uprobes.count_exit(gpa),
                _ => (),
            }
            let hit = self.hit_of(vcpu, code, &decoded)?;
            match self.emulate(vcpu, &decoded, hit)? {
                Passed::Emulated if code.is_some() => at = Gva(vcpu.regs()?.rip),
                Passed::Emulated => return Ok(HitOutcome::Resume),
                // The hardware raises the fault of a program: a program that comes to a new page faults often, and no host injects faults as
                // well as the processor raises them.
                Passed::Faulted(_) if state.privilege == PROGRAM => {
                    return Ok(HitOutcome::NeedsPause);
                }
                Passed::Faulted(fault) => {
                    vcpu.inject(fault)?;
                    return Ok(HitOutcome::Resume);
                }
                Passed::MustStep => return Ok(HitOutcome::NeedsPause),
            }
        }
        Ok(HitOutcome::Resume)
    }

    /// The probes at the instruction at `code`, an address on a hidden page.
    fn hit_of(
        &self,
        vcpu: &mut dyn Vcpu,
        code: Option<Gpa>,
        decoded: &Decoded,
    ) -> Result<OnPage, GuestError> {
        match code {
            Some(gpa) => self.uprobes.at_instruction(vcpu, gpa, Some(decoded)),
            None => Ok(OnPage::NoHit),
        }
    }

    /// Emulates an instruction, and reports its hits. An instruction that faults has not been executed: the hit comes when the guest executes the instruction
    /// again. If the page is another's by now, the others must be paused, as for an instruction that the emulator does not know.
    fn emulate(
        &self,
        vcpu: &mut dyn Vcpu,
        decoded: &Decoded,
        hit: OnPage,
    ) -> Result<Passed, GuestError> {
        let hit = match hit {
            OnPage::Outdated => return Ok(Passed::MustStep),
            OnPage::Hit(hit) => Some(hit),
            OnPage::NoHit => None,
        };
        let counter = hit.as_ref().and_then(|hit| hit.counter.as_ref());
        let passed = match counter {
            Some(counter) => self.pass_raised(vcpu, decoded, counter)?,
            None => self.watches.pass_after_exit(vcpu, decoded, None)?,
        };
        if let (Passed::Emulated, Some(hit)) = (passed, hit) {
            self.uprobes.report(vcpu, &hit, Tier::Emulated)?;
        }
        Ok(passed)
    }

    /// Emulates an instruction that reads the counter of probed marks, and finds the counter raised.
    fn pass_raised(
        &self,
        vcpu: &mut dyn Vcpu,
        decoded: &Decoded,
        counter: &ReadCounter,
    ) -> Result<Passed, GuestError> {
        let paging = vcpu.system_state()?.paging;
        let found = walk(&self.running.planter, &paging, counter.at);
        let raised = found.ok().map(|found| RaisedCounter::new(found.gpa));
        let passed = self
            .watches
            .pass_after_exit(vcpu, decoded, raised.as_ref())?;
        if matches!(passed, Passed::Emulated) && !raised.is_some_and(|it| it.was_read()) {
            // The kernel has moved the counter meanwhile.
            counter.miss();
        }
        Ok(passed)
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

    /// Whether any page is protected.
    fn is_protecting(&self) -> bool {
        self.watches.is_watching() || !self.uprobes.hidden.table.load().is_empty()
    }

    /// Emulates the instruction at RIP, which KVM could not emulate: at a protected page, KVM fails at locked instructions, and cannot fetch
    /// instructions from a hidden page.
    pub(crate) fn on_emulation_failure(
        &self,
        vcpu: &mut dyn Vcpu,
    ) -> Result<HitOutcome, GuestError> {
        if !self.is_protecting() || self.watches.is_lifted() {
            return Ok(HitOutcome::NotOurs);
        }
        let at = Gva(vcpu.regs()?.rip);
        let state = vcpu.system_state()?;
        let Some((decoded, spot)) = self.instruction_at(&state, at) else {
            return Ok(HitOutcome::NotOurs);
        };
        let code = self.hidden_code(spot);
        if let Some(gpa) = code {
            self.uprobes.count_exit(gpa);
        }
        let hit = match self.hit_of(vcpu, code, &decoded)? {
            // KVM would not execute the instruction with the others paused either.
            OnPage::Outdated => OnPage::NoHit,
            hit => hit,
        };
        Ok(match self.emulate(vcpu, &decoded, hit)? {
            Passed::Emulated => HitOutcome::Resume,
            Passed::Faulted(fault) => {
                vcpu.inject(fault)?;
                HitOutcome::Resume
            }
            // KVM would fail again.
            Passed::MustStep => HitOutcome::NotOurs,
        })
    }

    /// The address of the instruction at `spot`, if on a hidden page.
    fn hidden_code(&self, spot: Option<Spot>) -> Option<Gpa> {
        let gpa = spot?.gpa;
        self.uprobes.hidden.holds(gpa).then_some(gpa)
    }

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
        let table = self.watches.table.load_full();
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
        if written.is_empty() {
            // The emulator has read no byte, and cannot say which page the instruction reads.
            let hidden = self.uprobes.hidden.table.load();
            let probes = hidden.iter().flat_map(|(_, page)| &page.probes);
            self.uprobes.copies.on_read(vcpu, probes)?;
        }
        let memory = self.running.memory.as_ref();
        let lifted = Lifted::new(&table, &memory, vcpu.regs()?, event);
        self.watches.protections.lift(paused, true)?;
        *self.watches.lock() = Some(lifted);
        let stepped = self.step(vcpu, paused, at, event, run);
        let lifted = self.watches.lock().take();
        self.watches.protections.lift(paused, false)?;
        let (executed, in_place) = stepped?;
        if executed == Executed::Many {
            self.uprobes.miss_all();
        } else if let (OnPage::Hit(hit), InPlace::Executed) = (hit, in_place) {
            self.read_again(vcpu, &hit)?;
            self.uprobes.report(vcpu, &hit, Tier::Stepped)?;
        }
        if let Some(lifted) = lifted {
            let (regs, origin) = (lifted.regs, lifted.origin);
            for (watch, write) in lifted.end(&memory) {
                if executed == Executed::Many {
                    watch.probe.counters.miss(Missed::Unprotected);
                }
                match write {
                    Some(write) => self.watches.report(vcpu, regs, origin, &write)?,
                    // The exit does not name the page.
                    None => watch.probe.counters.count_exit(),
                }
            }
        }
        Ok(HitOutcome::Resume)
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
        at: Gva,
        event: Option<u8>,
        mut run: impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<(Executed, InPlace), GuestError> {
        if let Some(vector) = event {
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
        let plant = Plant::new(at, spot);
        let mut ran = Ran::Nowhere;
        let mut run = |vcpu: &mut V, to: To<'_>| {
            ran = run(vcpu, to)?;
            Ok(ran)
        };
        let executor = &self.executor;
        let in_place =
            executor.execute_in_place(vcpu, paused, &plant, decoded.as_ref(), at, &mut run)?;
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

    /// The original instruction at `at`, and its location if in RAM. `None` if the bytes cannot be read or decoded, or are not 64-bit
    /// code.
    fn instruction_at(&self, state: &SystemState, at: Gva) -> Option<(Decoded, Option<Spot>)> {
        if state.system.segments.cs.attributes & LONG_MODE == 0 {
            return None;
        }
        let detour = &self.watches.detour;
        if detour.maps(at) {
            let mut bytes = [0; MAX_LENGTH_BYTES];
            detour.read_at(at, &mut bytes)?;
            return Some((decode(&bytes, at).ok()?, None));
        }
        let spot = self.spot_of(state, at)?;
        let decoded = own_instruction(&self.running.planter, spot, at)?;
        Some((decoded, Some(spot)))
    }

    /// The location of the instruction at `at`, by the vCPU's page tables. `None` if the vCPU may not fetch it: a program must not execute, or read
    /// as an operand, what its page tables forbid.
    fn spot_of(&self, state: &SystemState, at: Gva) -> Option<Spot> {
        let planter = &self.running.planter;
        let fetched = |at: Gva| {
            let found = walk(planter, &state.paging, at).ok()?;
            let may_fetch = found.executable && (found.user || state.privilege != PROGRAM);
            may_fetch.then_some(found.gpa)
        };
        Some(Spot {
            gpa: fetched(at)?,
            beyond: fetched(at.page().wrapping_add(PAGE_BYTES)),
        })
    }
}
