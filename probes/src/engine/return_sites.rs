//! Return sites: the return addresses of followed calls. A site is planted when the first call that returns there is entered. If
//! the kernel patches the instruction there, the instructions behind it are planted (`landings`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use detour::{Record, register_value};
use introspect::Gva;
use text::{GuestError, Paused, Vcpu};

use super::edits::{Change, Sites};
use super::landings::{Landing, Landings, NoLandings, Stack};
use super::{ArmError, Engine};
use crate::handler::{EntryOutcome, HitContext};
use crate::hit::{Plant, Table};
use crate::registry::{Missed, Probe, Purpose, ReturnAction, ReturnPurpose};
use crate::returns::{Ended, Instance};

/// The maximum number of remembered return addresses without room for a plant; each further one costs a pause at each call. The
/// addresses come from the guest, which may invent any number of them.
const MAX_REMEMBERED_SITES: usize = 4096;
/// The maximum number of planted return sites; calls with other return sites are missed, and counted.
const MAX_PLANTED_SITES: usize = 1 << 16;

/// The known return sites.
#[derive(Debug, Default)]
pub(super) struct ReturnSites {
    /// Sites planted, or to be planted: read whenever plants are reconciled.
    sites: Mutex<BTreeSet<Gva>>,
    /// Return addresses of calls entered since the last check of plants.
    asked: Mutex<BTreeSet<Gva>>,
    /// The landings of return addresses without room for a plant.
    pub(super) landings: Landings,
    /// Return addresses where no plant is possible; read at every entry of a followed call.
    impossible: ArcSwap<BTreeSet<Gva>>,
    /// Whether a probe needs more of a return than a record holds.
    must_exit: AtomicBool,
}

impl ReturnSites {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<Gva>> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether each return has to exit.
    pub(super) fn must_exit(&self) -> bool {
        self.must_exit.load(Ordering::Acquire)
    }

    /// Sets whether each return has to exit. The other vCPUs are paused. Returns whether the setting has changed.
    pub(super) fn set_must_exit(&self, must_exit: bool) -> bool {
        self.must_exit.swap(must_exit, Ordering::AcqRel) != must_exit
    }

    pub(super) fn all(&self) -> Vec<Gva> {
        self.lock().iter().copied().collect()
    }

    pub(super) fn has(&self, site: Gva) -> bool {
        self.lock().contains(&site)
    }

    /// Whether there are sites outside of `range`.
    pub(super) fn has_outside(&self, range: &Range<Gva>) -> bool {
        let sites = self.lock();
        sites.range(..range.start).next().is_some() || sites.range(range.end..).next().is_some()
    }

    fn ask(&self, returns_to: Gva) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.insert(returns_to);
    }

    fn take_asked(&self) -> BTreeSet<Gva> {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rules `returns_to` out: calls with this return address are missed from now on.
    fn rule_out(&self, returns_to: Gva) {
        self.lock().remove(&returns_to);
        self.impossible.rcu(|known| {
            let mut known = known.as_ref().clone();
            if known.len() < MAX_REMEMBERED_SITES {
                known.insert(returns_to);
            }
            known
        });
    }

    /// Allows plants at the changed sites again: the kernel has changed the code there.
    pub(super) fn allow(&self, changed: impl Fn(Gva) -> bool) {
        self.impossible.rcu(|known| {
            let mut known = known.as_ref().clone();
            known.retain(|site| !changed(*site));
            known
        });
    }

    /// Forgets the sites that do not stay, and returns them.
    pub(super) fn retain(&self, stays: impl Fn(Gva) -> bool) -> Vec<Gva> {
        self.lock().extract_if(.., |site| !stays(*site)).collect()
    }
}

impl Engine {
    /// Enters a call of `probe`'s function; `hit` is at its first instruction. Returns whether the call's return site has yet to
    /// be planted, which needs the other vCPUs paused.
    pub(super) fn enter_call(
        &self,
        hit: &mut HitContext<'_>,
        probe: &Arc<Probe>,
        purpose: &ReturnPurpose,
    ) -> bool {
        // Recorded calls were entered earlier, and come first.
        self.take_out_records();
        if !probe.begin_call(purpose.maxactive) {
            probe.miss(Missed::MaxActive);
            return false;
        }
        let slot = hit.regs.rsp;
        let Ok(returns_to) = hit.read_u64(Gva(slot)).map(Gva) else {
            probe.lose_call(Missed::ReturnSite);
            return false;
        };
        let is_full = || self.return_sites.lock().len() >= MAX_PLANTED_SITES;
        let is_planted = self.shows_returns_to(returns_to, &self.table.load());
        let is_impossible = || {
            self.return_sites.impossible.load().contains(&returns_to)
                || self.return_sites.landings.are_none(returns_to)
        };
        // If the site is planted already, no lock is taken.
        if !is_planted && (is_impossible() || is_full()) {
            probe.lose_call(Missed::ReturnSite);
            return false;
        }
        let entered = match &purpose.action {
            ReturnAction::Handle(handler) => handler.0.entry(hit),
            ReturnAction::Trace | ReturnAction::Count | ReturnAction::Aggregate(_) => {
                EntryOutcome::Track(Box::new(()))
            }
        };
        let EntryOutcome::Track(data) = entered else {
            probe.lose_call(Missed::Declined);
            return false;
        };
        // Only events of traced returns carry the duration.
        let entered_ns = match &purpose.action {
            ReturnAction::Trace => self.now_ns(),
            ReturnAction::Handle(_) | ReturnAction::Count | ReturnAction::Aggregate(_) => 0,
        };
        let call = Instance {
            probe: Arc::clone(probe),
            slot,
            returns_to,
            entered_ns,
            data,
        };
        self.follow(call);
        if is_planted {
            self.may_be_recorded(returns_to);
            return false;
        }
        self.return_sites.ask(returns_to);
        true
    }

    fn follow(&self, call: Instance) {
        for abandoned in self.calls.entered(call) {
            abandoned.probe.lose_call(Missed::Abandoned);
        }
    }

    /// Enters a recorded call of `probe`'s function, with the record's time `entered_ns`.
    pub(super) fn enter_recorded_call(
        &self,
        probe: &Arc<Probe>,
        purpose: &ReturnPurpose,
        record: &Record,
        entered_ns: u64,
    ) {
        if probe.planted_at().is_none() {
            probe.miss(Missed::Disarmed);
            return;
        }
        if !probe.begin_call(purpose.maxactive) {
            probe.miss(Missed::MaxActive);
            return;
        }
        let returns_to = record.returns_to;
        if !self.shows_returns_to(returns_to, &self.table.load()) {
            // The plant was removed after the detour's look-up; the call may be over.
            probe.lose_call(Missed::ReturnSite);
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
    fn shows_returns_to(&self, returns_to: Gva, table: &Table) -> bool {
        let is_planted = |at| table.at(at).is_some_and(|plant| plant.returns);
        self.return_sites.landings.are(is_planted, returns_to)
    }

    /// Lets detours record calls that return to `returns_to`, whose landings have plants. Called on the thread of a vCPU: no
    /// other thread removes the plants meanwhile.
    fn may_be_recorded(&self, returns_to: Gva) {
        if let Some(ring) = self.detour.ring().as_ref()
            && let Err(error) = ring.allow(returns_to)
        {
            self.note(None, format!("calls are not recorded: {error}"));
        }
    }

    /// Ends the recording of calls at these sites, where plants have changed since `before`. If the plants of a return site are
    /// gone, its calls exit at their entry.
    pub(super) fn forbid_recording(
        &self,
        before: &Table,
        places: &[Gva],
    ) -> Result<(), GuestError> {
        let ring = self.detour.ring();
        let Some(ring) = ring.as_ref() else {
            return Ok(());
        };
        let table = self.table.load();
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

    /// Plants the return sites of the calls entered at `plant`.
    pub(super) fn plant_return_sites(&self, paused: &dyn Paused, plant: &Plant) {
        if !plant
            .probes
            .iter()
            .any(|(probe, _)| matches!(probe.purpose, Purpose::Return(_)))
        {
            return;
        }
        self.plant_asked_sites(paused);
    }

    /// Plants the return sites of all calls entered since the last check.
    pub(super) fn plant_asked_sites(&self, paused: &dyn Paused) {
        let table = self.table.load_full();
        let mut asked = self.return_sites.take_asked();
        asked.retain(|returns_to| !self.shows_returns_to(*returns_to, &table));
        let mut wanted = BTreeSet::new();
        let entries = self.return_sites.landings.entries();
        asked.retain(|returns_to| match self.find_landings(*returns_to) {
            Ok(landings) => {
                wanted.extend(landings);
                true
            }
            Err(NoLandings) => {
                if !self.return_sites.landings.are_none(*returns_to) {
                    self.return_sites.rule_out(*returns_to);
                }
                self.lose_calls_to(*returns_to);
                false
            }
        });
        if wanted.is_empty() {
            return;
        }
        self.unoptimise_new_entries(paused, &entries);
        self.return_sites.lock().extend(&wanted);
        let wanted: Vec<Gva> = wanted.into_iter().collect();
        if let Err(error) = self.change_sites(paused, &wanted) {
            self.note(None, format!("a return site cannot be planted: {error}"));
            for returns_to in asked {
                self.return_sites.rule_out(returns_to);
                self.lose_calls_to(returns_to);
            }
        }
    }

    /// Removes detours at functions that became landings of static calls: their records lack the top of the stack.
    fn unoptimise_new_entries(&self, paused: &dyn Paused, before: &BTreeSet<Gva>) {
        let table = self.table.load_full();
        let entries = self.return_sites.landings.entries();
        for plant in entries.difference(before).filter_map(|at| table.at(*at)) {
            if let Err(error) = self.unoptimise(paused, plant) {
                self.note(
                    None,
                    format!("returns to {} may be missed: {error}", plant.at),
                );
            }
        }
    }

    pub(super) fn change_sites(&self, paused: &dyn Paused, sites: &[Gva]) -> Result<(), ArmError> {
        let change = Change {
            probes: &[],
            dropped: &[],
            sites: Sites::These(sites),
        };
        self.change(paused, change)
    }

    /// Removes the plants from return sites without calls in flight. The next call with such a return address plants the
    /// site again.
    pub(super) fn prune_return_sites(&self, paused: &dyn Paused) {
        self.take_out_records();
        let landings = |returns_to: Gva| self.return_sites.landings.of(returns_to);
        let returns = self.calls.return_sites();
        let wanted: BTreeSet<Gva> = returns.into_iter().flat_map(landings).collect();
        let left = self.return_sites.retain(|site| wanted.contains(&site));
        if left.is_empty() {
            return;
        }
        if let Err(error) = self.change_sites(paused, &left) {
            self.note(None, format!("return sites stay planted: {error}"));
        }
    }

    /// Forgets the return sites in text about to be freed: no call returns there any more.
    pub(super) fn lose_return_sites(&self, stays: impl Fn(Gva) -> bool) {
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
    pub(super) fn forget_landings(&self, stays: impl Fn(Gva) -> bool) {
        let ring = self.detour.ring();
        let forgotten = self.return_sites.landings.forget(ring.as_deref(), stays);
        if let Err(error) = forgotten {
            self.note(
                None,
                format!("calls are recorded that return to text that has been freed: {error}"),
            );
        }
    }

    /// Counts the calls to `returns_to` as missed: no plant can see their returns.
    fn lose_calls_to(&self, returns_to: Gva) {
        for call in self.calls.returning_to(returns_to) {
            call.probe.lose_call(Missed::ReturnSite);
        }
    }

    /// Ends the calls that have returned to `site`, if the stack pointer matches a call in flight.
    pub(super) fn leave_calls(
        &self,
        hit: &mut HitContext<'_>,
        site: Gva,
    ) -> Result<(), GuestError> {
        self.take_out_records();
        let rsp = hit.regs.rsp;
        let returned = self.returned(site, rsp, &mut || hit.read_u64(Gva(rsp)).ok().map(Gva));
        for call in returned {
            call.probe.count_exit();
            call.probe.end_call();
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
                ReturnAction::Trace => self.tell_return(&call, hit.vcpu(), &hit.regs),
                ReturnAction::Count => (),
                ReturnAction::Aggregate(aggregated) => self.add_value(hit, aggregated),
            }
            if is_at_slot {
                hit.regs.rsp = rsp;
            }
        }
        Ok(())
    }

    /// The calls that have returned, given a plant at `site`, the stack pointer and the `top` of the stack; the call entered last
    /// comes first.
    fn returned(
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
    pub(super) fn leave_recorded_calls(&self, site: Gva, ts_ns: u64, vcpu: usize, record: &Record) {
        let returned = self.returned(site, record.regs.rsp, &mut || Some(record.returns_to));
        for call in returned {
            call.probe.end_call();
            let regs = &vmm::kvm_regs {
                rsp: call.slot.wrapping_add(8),
                ..record.regs
            };
            let Purpose::Return(purpose) = &call.probe.purpose else {
                continue;
            };
            match &purpose.action {
                ReturnAction::Trace => self.tell_return_at(ts_ns, &call, vcpu, regs),
                ReturnAction::Aggregate(aggregated) => {
                    let of = aggregated.aggregate.of();
                    let value = of.register().map(|register| register_value(regs, register));
                    aggregated.add(value.unwrap_or(vcpu as u64));
                }
                // If a probe has a return handler, returns exit.
                ReturnAction::Count | ReturnAction::Handle(_) => (),
            }
        }
    }

    /// Ends the task on the vCPU's stack. The task only runs on to the scheduler.
    pub(super) fn end_task(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let rsp = vcpu.regs()?.rsp;
        self.dying().insert(vcpu.index(), rsp);
        self.abandon_stack(rsp);
        Ok(())
    }

    /// Abandons the last calls of a task that has ended on this vCPU, now that another task runs. A function called by the dead
    /// task on the way to the scheduler has returned by now or never will.
    pub(super) fn leave_task(&self, vcpu: usize) {
        let dead = self.dying().remove(&vcpu);
        if let Some(rsp) = dead {
            self.abandon_stack(rsp);
        }
    }

    /// The stacks of tasks that have ended and are still on their vCPU, as a pointer into each.
    pub(super) fn dying(&self) -> MutexGuard<'_, BTreeMap<usize, u64>> {
        self.dying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abandon_stack(&self, rsp: u64) {
        self.take_out_records();
        for call in self.calls.task_ends(rsp) {
            call.probe.lose_call(Missed::Abandoned);
        }
    }
}
