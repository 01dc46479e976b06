//! Exits at protected pages: the emulator executes the instruction, or asks for a pause, in which the hardware does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva, PAGE_BYTES};
use events::Tier;
use iced_x86::Mnemonic;
use introspect::insn::{Decoded, MAX_LENGTH_BYTES, OperandRead, decode, operand_read};
use introspect::walk;
use text::{GuestError, Passed, RFLAGS_RF, Spot, SystemState, Vcpu};

use crate::engine::emulated_batch::{Attention, FetchedPage, MOST_EMULATED, raise_own_breakpoint};
use crate::engine::hits::Hits;
use crate::engine::hits::executor::Executor;
use crate::engine::hits::outcome::HitOutcome;
use crate::engine::plants::Plants;
use crate::engine::running::Running;
use crate::engine::uprobes::Uprobes;
use crate::engine::uprobes::code_hit::OnPage;
use crate::engine::uprobes::mark_counter::{RaisedCounter, ReadCounter};
use crate::engine::watch::Watches;
use crate::plant::{Plant, own_instruction};

/// The privilege level of programs.
pub(super) const PROGRAM: u8 = 3;
/// CS.L in the attributes of a segment: 64-bit code.
const LONG_MODE: u16 = 1 << 13;

/// The vector of #UD.
const INVALID_OPCODE: u8 = 6;

/// Handles exits at protected pages.
#[derive(Debug)]
pub(crate) struct ProtectedAccesses {
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) uprobes: Arc<Uprobes>,
    pub(crate) hits: Arc<Hits>,
    /// The addresses of hidden plants whose hits are dispatched and need the others paused, by the vCPU that has the hit.
    pub(crate) waiting: Mutex<BTreeMap<usize, Gva>>,
}

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
        let mut fetched = FetchedPage::default();
        for number in 0..MOST_EMULATED {
            let state = vcpu.system_state()?;
            let is_over = self.breakpoints_are_over(vcpu, number)?;
            if !is_over && is_64_bit(&state) && raise_own_breakpoint(vcpu, at)? {
                return Ok(HitOutcome::Resume);
            }
            let Some((decoded, spot)) = self.next_instruction(&state, at, &mut fetched) else {
                return match number {
                    0 => self.on_undecoded(vcpu, &state, at),
                    // The hardware raises the fault of a fetch that is not allowed.
                    _ => Ok(HitOutcome::Resume),
                };
            };
            let code = self.hidden_code(spot);
            let text = self.hidden_text(spot);
            if number > 0 && code.or(text).is_none() {
                return Ok(HitOutcome::Resume);
            }
            // A page that is protected for another reason may have instructions with debug registers, which do not fire here.
            if (text.is_some() || self.running.probes_in_registers())
                && let Some(plant) = self.plants.plant_at(vcpu, at)?
            {
                return self.on_hidden_plant(vcpu, &plant, at);
            }
            if number == 0 {
                self.count_exit(code, text);
            }
            let hit = self.hit_of(vcpu, code, &decoded)?;
            let before = Attention::of(vcpu)?;
            match self.emulate(vcpu, &decoded, hit)? {
                Passed::Emulated if code.or(text).is_none() => return Ok(HitOutcome::Resume),
                // KVM waits for the end of a halt, and delivers the interrupts that the vCPU has just begun to accept.
                Passed::Emulated if is_halt(&decoded) || before.rises(Attention::of(vcpu)?) => {
                    return Ok(HitOutcome::Resume);
                }
                Passed::Emulated => at = Gva(vcpu.regs()?.rip),
                // The trap is that of the first instruction: the vCPU exits again, at this one.
                Passed::MustStep if number > 0 => return Ok(HitOutcome::Resume),
                // The hardware raises the fault of a program: a program that comes to a new page faults often, and no host injects faults as
                // well as the processor raises them.
                Passed::Faulted(_) if state.privilege == PROGRAM => {
                    return Ok(match number {
                        0 => HitOutcome::NeedsPause,
                        _ => HitOutcome::Resume,
                    });
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

    /// Whether the breakpoints at the instruction have fired, or must not fire: the processor has looked at the debug registers before the exit, at the
    /// first instruction (`number` 0), or RF is set.
    pub(super) fn breakpoints_are_over(
        &self,
        vcpu: &mut dyn Vcpu,
        number: usize,
    ) -> Result<bool, GuestError> {
        let have_fired = number == 0 && self.running.abilities.breakpoint_before_fetch;
        Ok(have_fired || vcpu.regs()?.rflags & RFLAGS_RF != 0)
    }

    /// Handles an exit in front of bytes that no decoder knows, or that are not 64-bit code: the hardware executes them. A plant there is hit.
    fn on_undecoded(
        &self,
        vcpu: &mut dyn Vcpu,
        state: &SystemState,
        at: Gva,
    ) -> Result<HitOutcome, GuestError> {
        if is_64_bit(state)
            && self.hidden_text(self.spot_of(state, at)).is_some()
            && let Some(plant) = self.plants.plant_at(vcpu, at)?
        {
            return self.on_hidden_plant(vcpu, &plant, at);
        }
        Ok(HitOutcome::NeedsPause)
    }

    /// Handles a hit of a hidden plant. If the hit needs the others paused, [`take_waiting`](Self::take_waiting) knows that it is dispatched.
    fn on_hidden_plant(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        at: Gva,
    ) -> Result<HitOutcome, GuestError> {
        let outcome = self.hits.on_hidden_plant(vcpu, plant, at)?;
        if outcome == HitOutcome::NeedsPause {
            self.waiting().insert(vcpu.index(), at);
        }
        Ok(outcome)
    }

    /// Takes the address of the hidden plant whose hit of this vCPU is dispatched, and has waited for the pause.
    pub(crate) fn take_waiting(&self, vcpu: usize) -> Option<Gva> {
        self.waiting().remove(&vcpu)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<usize, Gva>> {
        // Each change is a single insertion or removal.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an exit for the probes on the page of the instruction. A hit of a hidden plant counts its own exit.
    fn count_exit(&self, code: Option<Gpa>, text: Option<Gpa>) {
        if let Some(gpa) = code {
            self.uprobes.count_exit(gpa);
        }
        let table = self.plants.table.load();
        let plants = text.into_iter().flat_map(|gpa| table.plants_on(gpa));
        plants
            .flat_map(|plant| &plant.probes)
            .for_each(|(probe, _)| probe.counters.count_exit());
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
    pub(super) fn pass_raised(
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

    /// Whether any page is protected.
    pub(super) fn is_protecting(&self) -> bool {
        self.watches.is_watching()
            || !self.uprobes.hidden.table.load().is_empty()
            || (self.running.hides_plants() && self.plants.table.load().pages().next().is_some())
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
        // An event that KVM delivers again comes first.
        if is_64_bit(&state)
            && !self.breakpoints_are_over(vcpu, 0)?
            && vcpu.undelivered_event()?.is_none()
            && raise_own_breakpoint(vcpu, at)?
        {
            return Ok(HitOutcome::Resume);
        }
        let Some((decoded, spot)) = self.instruction_at(&state, at) else {
            return self.on_undecoded(vcpu, &state, at);
        };
        let code = self.hidden_code(spot);
        let text = self.hidden_text(spot);
        if text.is_some()
            && let Some(plant) = self.plants.plant_at(vcpu, at)?
        {
            return self.on_hidden_plant(vcpu, &plant, at);
        }
        self.count_exit(code, text);
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
            // Some KVMs have raised #UD already.
            Passed::MustStep if vcpu.undelivered_event()? == Some(INVALID_OPCODE) => {
                HitOutcome::NotOurs
            }
            // If KVM fails without the protection, too, the failure is the guest's.
            Passed::MustStep => HitOutcome::NeedsPause,
        })
    }

    /// Reports a read that KVM's own emulator makes for the instruction at RIP, and that has found `data` at `gpa`.
    pub(crate) fn on_guest_read(
        &self,
        vcpu: &mut dyn Vcpu,
        gpa: Gpa,
        data: &[u8],
    ) -> Result<HitOutcome, GuestError> {
        if !self.is_protecting() || self.watches.is_lifted() {
            return Ok(HitOutcome::Resume);
        }
        let state = vcpu.system_state()?;
        let found = self.instruction_at(&state, Gva(vcpu.regs()?.rip));
        let read = found.map(|(decoded, _)| (operand_read(&decoded), decoded.at()));
        match read {
            // KVM reads the rest of the operand without an exit, fails, and begins anew.
            Some((OperandRead::Descriptor, _)) => return Ok(HitOutcome::NeedsPause),
            // KVM fails to emulate the write, and the emulator executes the instruction.
            Some((OperandRead::Atomic, _)) => (),
            Some((_, at)) if self.watches.detour.is_own(at) => (),
            _ if !self.watches.is_hidden(gpa) => (),
            Some((read, _)) => self.watches.guest_read(vcpu, gpa, data, read)?,
            None => return Ok(HitOutcome::NeedsPause),
        }
        Ok(HitOutcome::Resume)
    }

    /// The address of the instruction at `spot`, if on a hidden page.
    fn hidden_code(&self, spot: Option<Spot>) -> Option<Gpa> {
        let gpa = spot?.gpa;
        self.uprobes.hidden.holds(gpa).then_some(gpa)
    }

    /// The address of the instruction at `spot`, if on a page with hidden plants.
    fn hidden_text(&self, spot: Option<Spot>) -> Option<Gpa> {
        let gpa = spot?.gpa;
        self.plants.hides(gpa).then_some(gpa)
    }

    /// The original instruction at `at`, and its location if in RAM. `None` if the bytes cannot be read or decoded, or are not 64-bit
    /// code.
    pub(super) fn instruction_at(
        &self,
        state: &SystemState,
        at: Gva,
    ) -> Option<(Decoded, Option<Spot>)> {
        if !is_64_bit(state) {
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

    /// As [`instruction_at`](Self::instruction_at). Within a page, the tables are walked once, as the processor remembers a translation.
    fn next_instruction(
        &self,
        state: &SystemState,
        at: Gva,
        fetched: &mut FetchedPage,
    ) -> Option<(Decoded, Option<Spot>)> {
        if let Some(spot) = fetched.spot(state, at) {
            let decoded = own_instruction(&self.running.planter, spot, at)?;
            return Some((decoded, Some(spot)));
        }
        let found = self.instruction_at(state, at)?;
        *fetched = FetchedPage {
            at: at.page(),
            gpa: found.1.map(|spot| spot.gpa.page()),
            privilege: state.privilege,
        };
        Some(found)
    }

    /// The location of the instruction at `at`, by the vCPU's page tables. `None` if the vCPU may not fetch it: a program must not execute, or read
    /// as an operand, what its page tables forbid.
    pub(super) fn spot_of(&self, state: &SystemState, at: Gva) -> Option<Spot> {
        let planter = &self.running.planter;
        let fetched = |at: Gva| {
            let found = walk(planter, &state.paging, at).ok()?;
            // Ring 0 executes no page of a program (SMEP).
            let may_fetch = found.executable && found.user == (state.privilege == PROGRAM);
            may_fetch.then_some(found.gpa)
        };
        Some(Spot {
            gpa: fetched(at)?,
            beyond: fetched(at.page().wrapping_add(PAGE_BYTES)),
        })
    }
}

pub(super) fn is_64_bit(state: &SystemState) -> bool {
    state.system.segments.cs.attributes & LONG_MODE != 0
}

fn is_halt(decoded: &Decoded) -> bool {
    decoded.instruction().mnemonic() == Mnemonic::Hlt
}
