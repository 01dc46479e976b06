//! Watchpoints: each write of the guest to watched bytes is a hit, or each read, or both.
//!
//! The pages of the watched bytes are protected ([`text::Paused::protect_pages`]): an access exits before it takes place. hyprobe emulates
//! the instruction on the guest's memory, and compares the watched bytes. A lock orders the accesses of all vCPUs to protected pages, so
//! that old and new values are exact, and locked instructions are atomic. Details: `docs/watchpoints.md`.
//!
//! Threads: vCPUs access the memory and report on their own threads, under the lock. The table changes with the other vCPUs paused.

mod exits;
pub(crate) mod hot_pages;
pub(crate) mod lifted;
pub(crate) mod memory;
mod operands;
pub(crate) mod registers;
pub(crate) mod table;
pub(crate) mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use arc_swap::ArcSwap;
use detour::Detour;
use events::{DataRead, DataWrite, ProbeId};
use introspect::insn::{Decoded, OperandRead};
use text::{GuestError, GuestMemory, KernelTables, Passed, Paused, Spot, Vcpu, pass};
use vmm::kvm_regs;

use crate::engine::arm::edits::{Change, Sites};
use crate::engine::hit_arguments::HitArguments;
use crate::engine::plants::Plants;
use crate::engine::programs::Programs;
use crate::engine::protections::Protections;
use crate::engine::records::Records;
use crate::engine::reporter::{DataAccess, Reporter};
use crate::engine::running::Running;
use crate::engine::tasks::Position;
use crate::engine::uprobes::hidden_code::{HiddenCode, ReadOnlyCode};
use crate::engine::uprobes::mark_counter::RaisedCounter;
use crate::engine::uprobes::private_copies::PrivateCopies;
use crate::engine::watch::hot_pages::HotPages;
use crate::engine::watch::lifted::{Executed, Lifted, OperandReads};
use crate::engine::watch::memory::{AccessKind, Origin, Seen, SeenAccess, WatchedMemory};
use crate::engine::watch::table::{Watch, WatchTable};
use crate::handler::HitContext;
use crate::registry::{Missed, Probe, Purpose};

/// The armed watchpoints, and the guest's accesses to their pages.
#[derive(Debug)]
pub(crate) struct Watches {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) programs: Arc<Programs>,
    pub(crate) records: Arc<Records>,
    pub(crate) detour: Arc<Detour>,
    pub(crate) protections: Arc<Protections>,
    pub(crate) hidden: Arc<HiddenCode>,
    pub(crate) copies: Arc<PrivateCopies>,
    pub(crate) hot_pages: HotPages,
    pub(crate) table: ArcSwap<WatchTable>,
    /// Held from an access to a protected page until its event is queued: events are in the order of the accesses. The watched bytes, while
    /// the guest can access protected pages because a vCPU runs alone.
    pub(crate) order: Mutex<Option<Lifted>>,
}

impl Watches {
    /// Whether any watchpoint is armed.
    pub(crate) fn is_watching(&self) -> bool {
        !self.table.load().is_empty()
    }

    /// Whether a page of the instruction at `spot` has watched data.
    pub(crate) fn has_data_on(&self, spot: Spot, len: usize) -> bool {
        let table = self.table.load();
        let mut pages = spot.pages(len);
        pages.any(|page| table.on_page(page).next().is_some())
    }

    /// Whether the guest can access protected pages: a vCPU runs alone.
    pub(crate) fn is_lifted(&self) -> bool {
        self.lock().is_some()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Lifted>> {
        // Each change of the values is a single assignment.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Emulates an instruction of the vCPU, as [`pass`] does, and reports its accesses to watched bytes.
    pub(crate) fn pass(
        &self,
        vcpu: &mut dyn Vcpu,
        kernel: Option<KernelTables<'_>>,
        decoded: &Decoded,
    ) -> Result<Passed, GuestError> {
        self.pass_noting(vcpu, kernel, decoded, None)
            .map(|(passed, _)| passed)
    }

    /// Emulates an instruction that has exited at a protected page, and reads the counter of a mark if one is `raised`.
    pub(crate) fn pass_after_exit(
        &self,
        vcpu: &mut dyn Vcpu,
        decoded: &Decoded,
        raised: Option<&RaisedCounter>,
    ) -> Result<Passed, GuestError> {
        let (passed, seen) = self.pass_noting(vcpu, None, decoded, raised)?;
        // Otherwise the exit is counted when the hardware has executed the instruction.
        if passed == Passed::Emulated {
            self.count_exits(&seen, decoded.at());
        }
        Ok(passed)
    }

    fn pass_noting(
        &self,
        vcpu: &mut dyn Vcpu,
        kernel: Option<KernelTables<'_>>,
        decoded: &Decoded,
        raised: Option<&RaisedCounter>,
    ) -> Result<(Passed, Seen), GuestError> {
        let table = self.table.load();
        let ram = self.running.memory.as_ref();
        let code = ReadOnlyCode::new(ram, &self.hidden, vcpu.index(), raised);
        let memory: &dyn GuestMemory = match code.is_empty() {
            true => ram,
            false => &code,
        };
        let (planter, features) = (&self.running.planter, self.running.abilities.features);
        if table.is_empty() {
            let passed = pass(vcpu, memory, planter, features, kernel, decoded)?;
            self.look_for_copy(vcpu, passed, &code)?;
            return Ok((passed, Seen::default()));
        }
        let mut order = self.lock();
        let before = vcpu.regs()?;
        let watched = WatchedMemory::new(memory, &table);
        let passed = pass(vcpu, &watched, planter, features, kernel, decoded)?;
        let is_guests = !self.detour.is_own(decoded.at());
        let seen = watched.into_seen(passed == Passed::Emulated && is_guests);
        let origin = Origin::Instruction(decoded.at());
        self.report_emulated(vcpu, before, origin, &seen, order.as_mut())?;
        drop(order);
        self.look_for_copy(vcpu, passed, &code)?;
        Ok((passed, seen))
    }

    /// Counts a private copy if the emulated instruction has begun one.
    fn look_for_copy(
        &self,
        vcpu: &mut dyn Vcpu,
        passed: Passed,
        code: &ReadOnlyCode<'_>,
    ) -> Result<(), GuestError> {
        match passed {
            Passed::Emulated => self.copies.on_read(vcpu, code.begun()),
            Passed::Faulted(_) | Passed::MustStep => Ok(()),
        }
    }

    /// Makes a write that KVM has emulated up to the memory, at `gpa`. The vCPU's registers are those behind the instruction.
    ///
    /// Returns `false`, without a write, if the page is not protected, or keeps the original bytes of plants: the caller merges the write
    /// with the plants. No page is both as long as plants and watchpoints are refused on each other's pages; the write counts as missed.
    pub(crate) fn guest_write(
        &self,
        vcpu: &mut dyn Vcpu,
        gpa: Gpa,
        data: &[u8],
    ) -> Result<bool, GuestError> {
        let table = self.table.load();
        if !table.protects(gpa) {
            return Ok(false);
        }
        if self.running.planter.pages().keeps(gpa) {
            let touched = table.touched(gpa, data.len());
            let probes = touched.map(|watch| (watch.probe.id, &watch.probe));
            let probes: BTreeMap<ProbeId, _> = probes.collect();
            let probes = probes.into_values();
            probes.for_each(|probe| probe.counters.miss(Missed::Unprotected));
            return Ok(false);
        }
        let mut order = self.lock();
        let watched = WatchedMemory::new(self.running.memory.as_ref(), &table);
        text::GuestMemory::write(&watched, gpa, data)?;
        let seen = watched.into_seen(true);
        let regs = vcpu.regs()?;
        if seen.accesses().next().is_some() {
            let paging = vcpu.system_state()?.paging;
            let origin = Origin::Instruction(self.in_front_of(&paging, Gva(regs.rip)));
            self.report_emulated(vcpu, regs, origin, &seen, order.as_mut())?;
        }
        drop(order);
        self.count_exits(&seen, Gva(regs.rip));
        Ok(true)
    }

    /// Whether reads of the page of `gpa` exit because of a watchpoint.
    pub(crate) fn is_hidden(&self, gpa: Gpa) -> bool {
        self.table.load().hides(gpa)
    }

    /// Reports a read that KVM has emulated for the instruction at RIP, and that has found `data` at `gpa`. If `read` says that the instruction
    /// also writes, a write to the same bytes follows.
    pub(crate) fn guest_read(
        &self,
        vcpu: &mut dyn Vcpu,
        gpa: Gpa,
        data: &[u8],
        read: OperandRead,
    ) -> Result<(), GuestError> {
        let table = self.table.load();
        let mut order = self.lock();
        let memory = self.running.memory.as_ref();
        let watched = WatchedMemory::new(memory, &table);
        watched.on_read(gpa, &mut data.to_vec());
        let mut seen = watched.into_seen(true);
        if read == OperandRead::ThenWrite {
            seen.leave_reads_to_writes();
        }
        let regs = vcpu.regs()?;
        if seen.accesses().next().is_some() {
            let origin = Origin::Instruction(Gva(regs.rip));
            self.report_emulated(vcpu, regs, origin, &seen, order.as_mut())?;
        }
        drop(order);
        self.count_exits(&seen, Gva(regs.rip));
        Ok(())
    }

    /// Reports the accesses of an emulated instruction. If the hardware has written to the same bytes since the protection was lifted, its
    /// write is reported first.
    fn report_emulated(
        &self,
        vcpu: &mut dyn Vcpu,
        regs: kvm_regs,
        origin: Origin,
        seen: &Seen,
        mut lifted: Option<&mut Lifted>,
    ) -> Result<(), GuestError> {
        for access in seen.accesses() {
            if let Some(lifted) = lifted.as_deref_mut()
                && let Some(earlier) = lifted.note(access)
            {
                self.report(vcpu, lifted.regs, lifted.origin, &earlier)?;
            }
            access.watch.replace_last(access.new);
            self.report(vcpu, regs, origin, access)?;
        }
        Ok(())
    }

    /// Reports the accesses of an instruction that the hardware has executed while the guest could access the pages. `reads` are the operands
    /// of the instruction; `executed` says whether the hardware has executed others, too.
    pub(crate) fn end_lifted(
        &self,
        vcpu: &mut dyn Vcpu,
        lifted: &Lifted,
        executed: Executed,
        reads: &OperandReads,
    ) -> Result<(), GuestError> {
        let memory = self.running.memory.as_ref();
        // The vCPU may have loaded or unloaded a module with watched data.
        let present = self.table.load();
        let mut accesses = lifted.accesses(&memory, reads);
        accesses.retain(|access| present.index_of(access.watch.key()).is_some());
        let accessed: BTreeSet<ProbeId> = accesses
            .iter()
            .map(|access| access.watch.probe.id)
            .collect();
        let since = present.probes().iter();
        let since = since.filter(|(id, _)| !lifted.table().probes().contains_key(id));
        if executed == Executed::Many {
            since.for_each(|(_, (probe, _))| probe.counters.miss(Missed::Unprotected));
        }
        for (id, (probe, access)) in lifted.table().probes() {
            let is_unknown = reads.is_unknown() && access.has_reads();
            let is_unseen = !access.is_in_register() || lifted.takes_registers;
            if (executed == Executed::Many && is_unseen) || is_unknown {
                probe.counters.miss(Missed::Unprotected);
            }
            // The exit does not name the page.
            if !accessed.contains(id) && !access.is_in_register() {
                probe.counters.count_exit();
            }
        }
        for access in &accesses {
            access.watch.replace_last(access.new);
            self.report(vcpu, lifted.regs, lifted.origin, access)?;
        }
        Ok(())
    }

    /// Counts and reports an access of `origin`. `regs` are the vCPU's registers for the filter and the event.
    fn report(
        &self,
        vcpu: &mut dyn Vcpu,
        regs: kvm_regs,
        origin: Origin,
        access: &SeenAccess,
    ) -> Result<(), GuestError> {
        let watch = &access.watch;
        let probe = &watch.probe;
        let mut hit = HitContext::new(vcpu, &self.running.planter, &self.plants.table, regs);
        let mut arguments = HitArguments::new(probe, &self.reporter);
        if !self.programs.accepts(&mut hit, probe, &mut arguments) {
            return Ok(());
        }
        probe.counters.count_hit();
        match &probe.purpose {
            Purpose::Trace => {
                let writer = self.writer(origin);
                let (at, offset, copy) = (watch.at.into(), watch.offset, watch.copy);
                let bytes = u8::try_from(watch.len).unwrap_or(u8::MAX);
                let data = match access.kind {
                    AccessKind::Write => DataAccess::Write(DataWrite {
                        at,
                        offset,
                        copy,
                        bytes,
                        old: events::Hex(access.old),
                        new: events::Hex(access.new),
                    }),
                    AccessKind::Read => DataAccess::Read(DataRead {
                        at,
                        offset,
                        copy,
                        bytes,
                        value: events::Hex(access.new),
                    }),
                };
                let data = Some((writer.symbol, data));
                self.records
                    .emit_hit(&mut hit, probe, writer.ip, arguments, data)
            }
            Purpose::Aggregate(aggregated) => {
                let position = Position::At(Gva(hit.regs.rip));
                if !self
                    .programs
                    .add_value(&mut hit, position, &mut arguments, aggregated)
                {
                    probe.counters.miss(Missed::UnknownTask);
                }
                Ok(())
            }
            // Handlers, injections and returns are refused at watchpoints.
            _ => Ok(()),
        }
    }

    /// Arms exactly the watchpoints of `table`: their pages are protected. Returns the former table. The other vCPUs are paused.
    pub(crate) fn replace(
        &self,
        paused: &dyn Paused,
        table: WatchTable,
    ) -> Result<Arc<WatchTable>, GuestError> {
        let before = self.table.load_full();
        if before.pages() != table.pages() {
            self.protections.watch(paused, table.pages())?;
        }
        self.hot_pages.retain(|page| table.protects(page));
        self.table.store(Arc::new(table));
        Ok(before)
    }

    /// Disarms the watchpoints `probes`, and changes nothing else. The other vCPUs are paused.
    pub(crate) fn forget(
        &self,
        paused: &dyn Paused,
        probes: &[Arc<Probe>],
    ) -> Result<(), GuestError> {
        let others = self.outside(Change {
            probes: &[],
            dropped: probes,
            sites: Sites::These(&[]),
        });
        let table = WatchTable::new(others);
        // A change that has failed may have protected other pages than those of the present table.
        self.protections.watch(paused, table.pages())?;
        self.replace(paused, table)?;
        self.plants.forget_data(paused, probes);
        Ok(())
    }

    /// The armed watchpoints of probes outside of `change`.
    pub(crate) fn outside(&self, change: Change<'_>) -> Vec<Watch> {
        let changed = change.probes.iter().chain(change.dropped);
        let changed: BTreeSet<_> = changed.map(Arc::as_ptr).collect();
        let table = self.table.load();
        let watches = table.watches().iter();
        watches
            .filter(|watch| !changed.contains(&Arc::as_ptr(&watch.probe)))
            .cloned()
            .collect()
    }
}
