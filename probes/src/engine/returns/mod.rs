//! Followed calls at the exits of vCPUs: a call is entered, has returned, or is given up.

pub(crate) mod following;
pub(crate) mod landings;
pub(crate) mod program_calls;
pub(crate) mod return_sites;
pub(crate) mod site_planter;
pub(crate) mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::Gva;
use text::{GuestError, Vcpu};

use crate::engine::hit_arguments::HitArguments;
use crate::engine::plants::Plants;
use crate::engine::programs::Programs;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::returns::following::Following;
use crate::engine::returns::program_calls::ProgramCalls;
use crate::engine::returns::return_sites::{MAX_PLANTED_SITES, ReturnSites};
use crate::engine::tasks::Position;
use crate::handler::{EntryOutcome, HitContext};
use crate::hit_state::HitState;
use crate::registry::{Missed, Probe, Purpose, ReturnAction, ReturnPurpose};
use crate::returns::Instance;

/// Enters and leaves followed calls, on the thread of a vCPU.
#[derive(Debug)]
pub(crate) struct Returns {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) programs: Arc<Programs>,
    pub(crate) records: Arc<Records>,
    pub(crate) following: Arc<Following>,
    pub(crate) return_sites: Arc<ReturnSites>,
    pub(crate) program_calls: Arc<ProgramCalls>,
    /// Ended tasks that are still on their vCPU: see [`end_task`](Self::end_task).
    pub(crate) dying: Mutex<BTreeMap<usize, u64>>,
}

impl Returns {
    /// Enters a call of `probe`'s function; `hit` is at its first instruction. Returns whether the call's return site has yet to
    /// be planted, which needs the other vCPUs paused.
    pub(crate) fn enter_call(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Arc<Probe>,
        purpose: &ReturnPurpose,
    ) -> bool {
        // Recorded calls were entered earlier, and come first.
        self.records.take_out_records();
        if !probe.counters.begin_call(purpose.maxactive) {
            probe.counters.miss(Missed::MaxActive);
            return false;
        }
        let slot = hit.regs.rsp;
        let Ok(returns_to) = hit.read_u64(Gva(slot)).map(Gva) else {
            probe.counters.lose_call(Missed::ReturnSite);
            return false;
        };
        let is_full = || self.return_sites.lock().len() >= MAX_PLANTED_SITES;
        let is_planted = self
            .following
            .shows_returns_to(returns_to, &self.plants.table.load());
        let is_impossible = || {
            self.return_sites.impossible.load().contains(&returns_to)
                || self.return_sites.landings.are_none(returns_to)
        };
        // If the site is planted already, no lock is taken.
        if !is_planted && (is_impossible() || is_full()) {
            probe.counters.lose_call(Missed::ReturnSite);
            return false;
        }
        let entered = match &purpose.action {
            ReturnAction::Handle(handler) => handler.0.entry(hit),
            ReturnAction::Trace | ReturnAction::Count | ReturnAction::Aggregate(_) => {
                EntryOutcome::Track(Box::new(()))
            }
        };
        let EntryOutcome::Track(data) = entered else {
            probe.counters.lose_call(Missed::Declined);
            return false;
        };
        // Only events of traced returns carry the duration.
        let entered_ns = match &purpose.action {
            ReturnAction::Trace => self.reporter.now_ns(),
            ReturnAction::Handle(_) | ReturnAction::Count | ReturnAction::Aggregate(_) => 0,
        };
        let call = Instance {
            probe: Arc::clone(probe),
            slot,
            returns_to,
            entered_ns,
            data,
        };
        self.following.follow(call);
        if is_planted {
            self.following.may_be_recorded(returns_to);
            return false;
        }
        self.return_sites.ask(returns_to);
        true
    }

    /// Ends the calls that have returned to `site`, if the stack pointer matches a call in flight.
    pub(crate) fn leave_calls(
        &self,
        hit: &mut HitContext<'_>,
        site: Gva,
    ) -> Result<(), GuestError> {
        self.records.take_out_records();
        let rsp = hit.regs.rsp;
        let returned = self
            .following
            .returned(site, rsp, &mut || hit.read_u64(Gva(rsp)).ok().map(Gva));
        for call in returned {
            call.probe.counters.count_exit();
            call.probe.counters.end_call();
            let Purpose::Return(purpose) = &call.probe.purpose else {
                continue;
            };
            hit.regs.rip = call.returns_to.0;
            let is_at_slot = rsp == call.slot;
            if is_at_slot {
                // A static call has pushed its return address since the return.
                hit.regs.rsp = rsp.wrapping_add(8);
            }
            match &purpose.action {
                ReturnAction::Handle(handler) => handler.0.ret(hit, call.data),
                ReturnAction::Trace => self.records.emit_return(hit, &call)?,
                ReturnAction::Count => (),
                ReturnAction::Aggregate(aggregated) => {
                    let mut arguments = HitArguments::new(&call.probe, &self.reporter);
                    // The result counts its values: a return without one is not in the result.
                    self.programs.add_value(
                        hit,
                        Position::BehindReturn,
                        &mut arguments,
                        aggregated,
                    );
                }
            }
            if is_at_slot {
                hit.regs.rsp = rsp;
            }
        }
        Ok(())
    }

    /// Ends the task on the vCPU's stack. The task only runs on to the scheduler.
    pub(crate) fn end_task(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let regs = vcpu.regs()?;
        self.dying().insert(vcpu.index(), regs.rsp);
        self.abandon_stack(regs.rsp);
        if !self.program_calls.is_empty() {
            let state = HitState::from(vcpu.system_state()?);
            let position = Position::At(Gva(regs.rip));
            let task = self.records.tasks.address(&state, position);
            for call in task
                .into_iter()
                .flat_map(|task| self.program_calls.end_task(task))
            {
                call.probe.counters.lose_call(Missed::Abandoned);
            }
        }
        Ok(())
    }

    /// Abandons the last calls of a task that has ended on this vCPU, now that another task runs. A function called by the dead
    /// task on the way to the scheduler has returned by now or never will.
    pub(crate) fn leave_task(&self, vcpu: usize) {
        let dead = self.dying().remove(&vcpu);
        if let Some(rsp) = dead {
            self.abandon_stack(rsp);
        }
    }

    /// The stacks of tasks that have ended and are still on their vCPU, as a pointer into each.
    pub(crate) fn dying(&self) -> MutexGuard<'_, BTreeMap<usize, u64>> {
        self.dying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abandon_stack(&self, rsp: u64) {
        self.records.take_out_records();
        for call in self.following.calls.task_ends(rsp) {
            call.probe.counters.lose_call(Missed::Abandoned);
        }
    }

    /// Stops following calls for the given probes.
    pub(crate) fn forget_calls(&self, probes: &[Arc<Probe>]) {
        let gone: BTreeSet<*const Probe> = probes
            .iter()
            .filter(|probe| matches!(probe.purpose, Purpose::Return(_)))
            .map(Arc::as_ptr)
            .collect();
        if gone.is_empty() {
            return;
        }
        self.records.take_out_records();
        let is_gone = |probe: &Arc<Probe>| gone.contains(&Arc::as_ptr(probe));
        for call in self.following.calls.forget(is_gone) {
            call.probe.counters.lose_call(Missed::Disarmed);
        }
        for call in self.program_calls.forget(is_gone) {
            call.probe.counters.lose_call(Missed::Disarmed);
        }
    }
}
