//! The change of the hidden pages: which pages of memory have probed instructions now.

use std::collections::BTreeSet;
use std::sync::Arc;

use address::Gpa;
use errors::chain;
use events::ProbeState;
use text::{GuestError, Paused};
use vmm::{ProtectError, SlotError};

use super::code_table::{CodePage, CodeTable};
use super::target::Target;
use super::{Announced, Uprobes, wanted};
use crate::registry::{Missed, Probe};
use crate::resolve::Refusal;

impl Uprobes {
    /// Counts the pages that have come unseen, and replaces the table.
    pub(super) fn rebuild(
        &self,
        paused: &dyn Paused,
        added: &[Announced],
        written: &BTreeSet<Gpa>,
    ) -> Result<(), GuestError> {
        self.miss_unseen();
        self.replace_table(paused, added, written)
    }

    /// Hides the pages of all targets in memory, and the announced pages. Pages that were announced before stay hidden until
    /// they are in the file, or an instruction would have written to them.
    pub(super) fn replace_table(
        &self,
        paused: &dyn Paused,
        added: &[Announced],
        written: &BTreeSet<Gpa>,
    ) -> Result<(), GuestError> {
        let mut targets = self.targets.load_full();
        let before = self.hidden.table.load_full();
        let table = self.files.read(&self.running, |reader, _| {
            let targets: &mut Vec<Target> = Arc::make_mut(&mut targets);
            for target in targets.iter_mut() {
                reader.renew();
                target.forget_gone(reader);
            }
            let wanted = wanted(targets);
            let mut table = CodeTable::expecting(wanted.keys().copied());
            let mut insert = |gpa: Gpa, file, number, announced| {
                let code = wanted.get(&(file, number));
                if let Some(code) = code
                    && self.can_hide(gpa)
                    && table.holding(gpa).is_none()
                {
                    let code = code.clone();
                    table.insert(gpa, CodePage::new(file, number, code, announced));
                }
            };
            // A page in a file is announced no longer.
            for (file, number) in wanted.keys() {
                reader.renew();
                if let Some(gpa) = reader.page(file, *number) {
                    insert(gpa, *file, *number, false);
                }
            }
            // The memory of an announced page may be announced anew, for another page.
            for page in added {
                insert(page.gpa, page.file, page.number, true);
            }
            let is_kept = |gpa: &Gpa, page: &CodePage| page.announced && !written.contains(gpa);
            for (gpa, page) in before.iter().filter(|(gpa, page)| is_kept(gpa, page)) {
                insert(gpa, page.file, page.number, true);
            }
            match reader.is_exhausted() {
                true => None,
                false => Some(table),
            }
        });
        let table = match table {
            Some(Some(table)) => table,
            Some(None) => {
                return self.refuse_all(
                    paused,
                    "the page caches of the files are too large to be read",
                );
            }
            None => CodeTable::default(),
        };
        if let Err(error) = self.protections.hide(paused, table.addresses()) {
            if matches!(
                error,
                GuestError::Protect(ProtectError::Slot(SlotError::Refused { .. }))
            ) {
                return Err(error);
            }
            return self.refuse_all(paused, &chain(&error));
        }
        self.hidden.table.store(Arc::new(table));
        targets.iter().for_each(show_state);
        self.targets.store(targets);
        Ok(())
    }

    /// Whether the page is RAM without plants. Only a false page cache names others.
    fn can_hide(&self, gpa: Gpa) -> bool {
        let in_ram = self.running.memory.ranges();
        let has_plants = self.running.planter.pages().keeps(gpa) || self.plants.hides(gpa);
        in_ram.iter().any(|range| range.contains(&gpa)) && !has_plants
    }

    /// Refuses all targets: their executions would not be seen.
    pub(super) fn refuse_all(&self, paused: &dyn Paused, reason: &str) -> Result<(), GuestError> {
        for target in self.targets.swap(Arc::default()).iter() {
            self.reporter
                .note(Some(&target.probe), format!("cannot be armed: {reason}"));
            let status = &target.probe.status;
            status.set_state(ProbeState::Refused, Some(reason.to_owned()));
            let is_its = |probe: &Arc<Probe>| Arc::ptr_eq(probe, &target.probe);
            for call in self.calls.forget(is_its) {
                call.probe.counters.lose_call(Missed::Disarmed);
            }
        }
        self.hidden.table.store(Arc::default());
        self.protections.hide(paused, BTreeSet::new())
    }
}

fn show_state(target: &Target) {
    let status = &target.probe.status;
    match target.offset() {
        Some(offset) => status.set_armed(events::Hex(offset)),
        None => {
            let path = target.code.path.clone();
            let reason = match &target.refused {
                Some(why) => format!("{path} is not probed: {why}"),
                None => Refusal::NotMapped { path }.to_string(),
            };
            status.set_state(ProbeState::Pending, Some(reason));
        }
    }
}
