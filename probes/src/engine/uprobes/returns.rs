//! Calls of functions in programs, followed to their return.
//!
//! The pages of the function are hidden, so hyprobe sees each `ret` of the function. The call whose first instruction had the same stack pointer in
//! the same address space has returned. No byte of the program's stack changes, and the page that the call returns to is not hidden.

use std::sync::Arc;

use address::Gva;
use events::Tier;
use introspect::{PagingState, read_virt};
use manifest::program::TaskNumber;
use text::{GuestError, Vcpu};
use vmm::kvm_regs;

use super::Uprobes;
use super::code_hit::{CodeHit, Leaving, ProgramState};
use super::code_table::CodeSite;
use crate::engine::hit_arguments::HitArguments;
use crate::engine::records::ProgramReturn;
use crate::engine::returns::program_calls::{CallKey, ProgramCall};
use crate::engine::tasks::Position;
use crate::handler::HitContext;
use crate::registry::{Missed, ReturnAction, ReturnPurpose};

impl Uprobes {
    /// Enters or leaves the call at an instruction of the function of `site`. The vCPU has executed the instruction.
    pub(super) fn follow(
        &self,
        vcpu: &mut dyn Vcpu,
        executed: &CodeHit,
        site: &CodeSite,
        purpose: &ReturnPurpose,
        tier: Tier,
        state: &mut Option<ProgramState>,
    ) -> Result<(), GuestError> {
        if site.offset == executed.at {
            self.enter(vcpu, executed, site, purpose, tier, state)?;
        }
        if executed.leaving != Leaving::Never && self.calls.has_any_at(executed.regs.rsp) {
            self.leave(vcpu, executed, site, purpose, state)?;
        }
        Ok(())
    }

    /// The system registers, read once for an instruction.
    pub(super) fn state_once<'s>(
        &self,
        vcpu: &mut dyn Vcpu,
        state: &'s mut Option<ProgramState>,
    ) -> Result<&'s ProgramState, GuestError> {
        Ok(match state {
            Some(state) => state,
            None => state.insert(self.program_state(vcpu)?),
        })
    }

    /// A context with `regs` and the kernel's view of memory.
    pub(super) fn context<'v>(
        &'v self,
        vcpu: &'v mut dyn Vcpu,
        regs: kvm_regs,
        state: &mut Option<ProgramState>,
    ) -> Result<HitContext<'v>, GuestError> {
        let kernel = self.state_once(vcpu, state)?.kernel.clone();
        let mut hit = HitContext::new(vcpu, &self.running.planter, &self.plants.table, regs);
        hit.set_state(kernel);
        Ok(hit)
    }

    fn enter(
        &self,
        vcpu: &mut dyn Vcpu,
        executed: &CodeHit,
        site: &CodeSite,
        purpose: &ReturnPurpose,
        tier: Tier,
        state: &mut Option<ProgramState>,
    ) -> Result<(), GuestError> {
        let (probe, regs) = (&site.probe, executed.regs);
        let key = self.call_of(site, self.state_once(vcpu, state)?, regs);
        if self.calls.take_restart(key) {
            return Ok(());
        }
        // An earlier call was left in another way than by a return.
        if let Some(earlier) = self.calls.take(key) {
            lose_unseen(earlier);
        }
        let mut hit = self.context(vcpu, regs, state)?;
        let mut arguments = HitArguments::new(probe, &self.reporter);
        if !self
            .programs
            .accepts_within_exit(&mut hit, probe, &mut arguments)
        {
            return Ok(());
        }
        probe.counters.count_recorded();
        probe.tier.passed_by(tier);
        let position = Position::At(Gva(regs.rip));
        let entered_ns = match &purpose.action {
            ReturnAction::Trace => self.reporter.now_ns(),
            ReturnAction::Handle(_) | ReturnAction::Count | ReturnAction::Aggregate(_) => 0,
        };
        let call = ProgramCall {
            probe: Arc::clone(probe),
            task: self.records.tasks.address(hit.state()?, position),
            entered_ns,
            restarts: false,
        };
        let mut has_room = probe.counters.begin_call(purpose.maxactive);
        if !has_room {
            self.calls
                .take_below(key, &call)
                .into_iter()
                .for_each(lose_unseen);
            has_room = probe.counters.begin_call(purpose.maxactive);
        }
        if !has_room {
            probe.counters.miss(Missed::MaxActive);
            return Ok(());
        }
        if let Some(earlier) = self.calls.enter(key, call) {
            lose_unseen(earlier);
        }
        Ok(())
    }

    fn leave(
        &self,
        vcpu: &mut dyn Vcpu,
        executed: &CodeHit,
        site: &CodeSite,
        purpose: &ReturnPurpose,
        state: &mut Option<ProgramState>,
    ) -> Result<(), GuestError> {
        let (probe, before) = (&site.probe, executed.regs);
        let program = self.state_once(vcpu, state)?;
        let key = self.call_of(site, program, before);
        let after = match vcpu.regs()? {
            // The vCPU may be in the kernel already, at an exception behind the instruction.
            regs if regs.rip >> 63 == 0 => regs,
            _ if executed.leaving == Leaving::Return => self.behind_return(before, &program.paging),
            _ => return Ok(()),
        };
        let jumps = executed.leaving == Leaving::Jump;
        let target = (executed.at).wrapping_add(after.rip.wrapping_sub(before.rip));
        if jumps && site.is_in_function(target) {
            if target == site.offset {
                self.calls.restart(key);
            }
            return Ok(());
        }
        let Some(call) = self.calls.take(key) else {
            return Ok(());
        };
        if jumps {
            probe.counters.lose_call(Missed::TailCall);
            return Ok(());
        }
        probe.counters.end_call();
        let mut hit = self.context(vcpu, after, state)?;
        match &purpose.action {
            ReturnAction::Trace => {
                let returned = ProgramReturn {
                    symbol: Arc::clone(&site.symbol),
                    entered_ns: call.entered_ns,
                    depth: self.calls.enclosing(key.space, call.task, key.rsp),
                };
                self.records
                    .emit_return_in_program(&mut hit, probe, returned)?;
            }
            ReturnAction::Aggregate(aggregated) => {
                let position = Position::At(Gva(after.rip));
                let mut arguments = HitArguments::new(probe, &self.reporter);
                // The result counts its values: a return without one is not in the result.
                self.programs
                    .add_value(&mut hit, position, &mut arguments, aggregated);
            }
            // Return handlers are refused in programs.
            ReturnAction::Count | ReturnAction::Handle(_) => (),
        }
        Ok(())
    }

    /// The call of the function of `site` by a program with `regs`.
    fn call_of(&self, site: &CodeSite, state: &ProgramState, regs: kvm_regs) -> CallKey {
        let tasks = &self.records.tasks;
        let position = Position::At(Gva(regs.rip));
        CallKey {
            rsp: regs.rsp,
            space: state.paging.root(),
            process: tasks.number(&state.kernel, position, TaskNumber::Process),
            probe: site.probe.id,
            function: site.offset,
        }
    }

    /// The registers behind a `ret` with the registers `before`, by the program's page tables.
    fn behind_return(&self, before: kvm_regs, paging: &PagingState) -> kvm_regs {
        let mut target = [0; 8];
        let planter = &self.running.planter;
        // An address that cannot be read now was readable for the `ret`.
        let is_read = read_virt(planter, paging, Gva(before.rsp), &mut target).is_ok();
        kvm_regs {
            rip: if is_read {
                u64::from_le_bytes(target)
            } else {
                0
            },
            rsp: before.rsp.wrapping_add(8),
            ..before
        }
    }
}

fn lose_unseen(call: ProgramCall) {
    call.probe.counters.lose_call(Missed::LeftUnseen);
}
