//! Calls followed to their return.

use std::sync::Arc;

use address::Gva;
use detour::{Detour, Record, register_value};
use manifest::program::Operand;
use text::GuestError;

use crate::engine::plants::Plants;
use crate::engine::reporter::Reporter;
use crate::engine::returns::landings::{Landing, Stack};
use crate::engine::returns::return_sites::ReturnSites;
use crate::engine::running::Running;
use crate::engine::tasks::recorded;
use crate::plant_table::Table;
use crate::registry::{Missed, Probe, Purpose, ReturnAction, ReturnPurpose};
use crate::returns::{Calls, Ended, Instance};

/// The followed calls, and their return sites.
#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) detour: Arc<Detour>,
    pub(crate) return_sites: Arc<ReturnSites>,
    pub(crate) calls: Arc<Calls>,
}

impl Following {
    pub(crate) fn follow(&self, call: Instance) {
        for abandoned in self.calls.entered(call) {
            abandoned.probe.counters.lose_call(Missed::Abandoned);
        }
    }

    /// Enters a recorded call of `probe`'s function, with the record's time `entered_ns`.
    pub(crate) fn enter_recorded_call(
        &self,
        probe: &Arc<Probe>,
        purpose: &ReturnPurpose,
        record: &Record,
        entered_ns: u64,
    ) {
        if probe.planted_at().is_none() {
            probe.counters.miss(Missed::Disarmed);
            return;
        }
        if !probe.counters.begin_call(purpose.maxactive) {
            probe.counters.miss(Missed::MaxActive);
            return;
        }
        let returns_to = record.returns_to;
        if !self.shows_returns_to(returns_to, &self.plants.table.load()) {
            // The plant was removed after the detour's look-up; the call may be over.
            probe.counters.lose_call(Missed::ReturnSite);
            return;
        }
        self.follow(Instance {
            probe: Arc::clone(probe),
            slot: record.regs.rsp,
            returns_to,
            entered_ns,
            data: Box::new(()),
        });
    }

    /// Whether each landing of `returns_to` has a plant in `table`.
    pub(crate) fn shows_returns_to(&self, returns_to: Gva, table: &Table) -> bool {
        let is_planted = |at| table.at(at).is_some_and(|plant| plant.returns);
        self.return_sites.landings.are(is_planted, returns_to)
    }

    /// Lets detours record calls that return to `returns_to`, whose landings have plants. Called on the thread of a vCPU: no
    /// other thread removes the plants meanwhile.
    pub(crate) fn may_be_recorded(&self, returns_to: Gva) {
        if let Some(ring) = self.detour.ring().as_ref()
            && let Err(error) = ring.allow(returns_to)
        {
            self.reporter
                .note(None, format!("calls are not recorded: {error}"));
        }
    }

    /// Ends the recording of calls at these sites, where plants have changed since `before`. If the plants of a return site are
    /// gone, its calls exit at their entry.
    pub(crate) fn forbid_recording(
        &self,
        before: &Table,
        places: &[Gva],
    ) -> Result<(), GuestError> {
        let ring = self.detour.ring();
        let Some(ring) = ring.as_ref() else {
            return Ok(());
        };
        let table = self.plants.table.load();
        let returns = |table: &Table, at: Gva| table.at(at).is_some_and(|plant| plant.returns);
        for at in places {
            if returns(before, *at) && !returns(&table, *at) {
                ring.forbid(*at)?;
                for returns_to in self.return_sites.landings.shown_by(*at) {
                    ring.forbid(returns_to)?;
                }
            }
        }
        Ok(())
    }

    /// Forgets the return sites in text about to be freed: no call returns there any more.
    pub(crate) fn lose_return_sites(&self, stays: impl Fn(Gva) -> bool) {
        self.return_sites.retain(&stays);
        let landings = &self.return_sites.landings;
        let is_lost = |returns_to: Gva| {
            !stays(returns_to) || landings.of(returns_to).iter().any(|at| !stays(*at))
        };
        for returns_to in self
            .calls
            .return_sites()
            .into_iter()
            .filter(|at| is_lost(*at))
        {
            self.lose_calls_to(returns_to);
        }
        self.forget_landings(stays);
    }

    /// Forgets the landings of addresses that do not stay; the next call determines them anew.
    pub(crate) fn forget_landings(&self, stays: impl Fn(Gva) -> bool) {
        let ring = self.detour.ring();
        let forgotten = self.return_sites.landings.forget(ring.as_deref(), stays);
        if let Err(error) = forgotten {
            self.reporter.note(
                None,
                format!("calls are recorded that return to text that has been freed: {error}"),
            );
        }
    }

    /// Counts the calls to `returns_to` as missed: no plant can see their returns.
    pub(crate) fn lose_calls_to(&self, returns_to: Gva) {
        for call in self.calls.returning_to(returns_to) {
            call.probe.counters.lose_call(Missed::ReturnSite);
        }
    }

    /// The calls that have returned, given a plant at `site`, the stack pointer and the `top` of the stack; the call entered last
    /// comes first.
    pub(crate) fn returned(
        &self,
        site: Gva,
        rsp: u64,
        top: &mut dyn FnMut() -> Option<Gva>,
    ) -> impl Iterator<Item = Instance> + use<> {
        let landings = &self.return_sites.landings;
        let at = |stack, slot| {
            let landing = Landing { at: site, stack };
            self.calls
                .returned(slot, |returns_to| landings.shows(landing, returns_to))
        };
        let pushed = if landings.may_be_at_slot(site) {
            top()
        } else {
            None
        };
        let at_slot = match pushed {
            Some(pushed) => at(Stack::AtSlot { pushed }, rsp),
            None => Ended::default(),
        };
        let above = at(Stack::AboveSlot, rsp.wrapping_sub(8));
        at_slot
            .last_entered_first()
            .chain(above.last_entered_first())
    }

    /// Ends the calls that have returned to `site`, according to a record of a detour there.
    pub(crate) fn leave_recorded_calls(&self, site: Gva, ts_ns: u64, vcpu: usize, record: &Record) {
        let returned = self.returned(site, record.regs.rsp, &mut || Some(record.returns_to));
        for call in returned {
            call.probe.counters.end_call();
            let regs = &vmm::kvm_regs {
                rsp: call.slot.wrapping_add(8),
                ..record.regs
            };
            let Purpose::Return(purpose) = &call.probe.purpose else {
                continue;
            };
            match &purpose.action {
                ReturnAction::Trace => self.reporter.emit_return_at(
                    ts_ns,
                    &call,
                    vcpu,
                    regs,
                    record.task.map(recorded),
                    None,
                ),
                ReturnAction::Aggregate(aggregated) => {
                    // Detours add other values themselves.
                    match aggregated.aggregate.of() {
                        Operand::Cpu => aggregated.add(vcpu as u64),
                        of => of
                            .register()
                            .into_iter()
                            .for_each(|register| aggregated.add(register_value(regs, register))),
                    }
                }
                // If a probe has a return handler, returns exit.
                ReturnAction::Count | ReturnAction::Handle(_) => (),
            }
        }
    }
}
