//! Probes in programs: each execution of an instruction of a file is a hit, in every program that maps the file.
//!
//! The page with the instruction, in the page cache, is hidden from the guest ([`vmm::Protection::Accesses`]): each access exits before it
//! takes place. The emulator executes the instructions on the page, and serves reads with the contents. No byte of the guest changes, so a
//! program or the kernel that reads the file finds its own bytes. Details: `docs/uprobes.md`.
//!
//! Threads: vCPUs execute and report on their own threads. Targets and the table change with the vCPUs paused.

pub(crate) mod code_table;
pub(crate) mod file_events;
pub(crate) mod guest_files;
pub(crate) mod hidden_code;
pub(crate) mod report;
pub(crate) mod target;

use std::collections::BTreeSet;
use std::sync::Arc;

use address::{Gpa, Gva};
use arc_swap::ArcSwap;
use errors::chain;
use events::ProbeState;
use inspect::{FileId, FileReader};
use text::{GuestError, Paused};
use vmm::{ProtectError, SlotError, kvm_regs};

use crate::engine::plants::Plants;
use crate::engine::programs::Programs;
use crate::engine::protections::Protections;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::running::Running;
use crate::registry::{FileEvent, Missed, Probe};
use crate::resolve::Refusal;

use code_table::{CodePage, CodeSite, CodeTable};
use file_events::{AddedFolio, FileChange, FileEvents, FirstPage};
use guest_files::GuestFiles;
use hidden_code::HiddenCode;
use target::{Target, Unbound, WantedPages};

/// The probes in programs, the files that have their instructions, and the hidden pages.
#[derive(Debug)]
pub(crate) struct Uprobes {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) records: Arc<Records>,
    pub(crate) programs: Arc<Programs>,
    pub(crate) protections: Arc<Protections>,
    pub(crate) hidden: Arc<HiddenCode>,
    pub(crate) files: GuestFiles,
    pub(crate) events: FileEvents,
    /// In the order of registration. Replaced with the vCPUs paused.
    pub(crate) targets: ArcSwap<Vec<Target>>,
}

/// A page that the kernel is about to add to a file.
#[derive(Clone, Copy, Debug)]
struct Announced {
    file: FileId,
    number: u64,
    gpa: Gpa,
}

impl Uprobes {
    /// Looks up what events need to know of the kernel, while the guest runs.
    pub(crate) fn prepare(&self) {
        self.events.prepare(&self.running.kernel);
        self.files.prepare(&self.running.kernel);
    }

    /// Probes exactly `wanted`. The files that programs have mapped before are looked for, if a probe is new. The other vCPUs are paused.
    pub(crate) fn retarget(
        &self,
        paused: &dyn Paused,
        wanted: &[Arc<Probe>],
    ) -> Result<(), GuestError> {
        let before = self.targets.load_full();
        if before.is_empty() && wanted.is_empty() {
            return Ok(());
        }
        // The pages that came unseen count for the present targets: a probe that goes now was armed until now.
        self.miss_unseen();
        let known = |probe: &Arc<Probe>| before.iter().find(|it| Arc::ptr_eq(&it.probe, probe));
        let has_new = wanted.iter().any(|probe| known(probe).is_none());
        let mut targets: Vec<Target> = wanted
            .iter()
            .filter_map(|probe| {
                let target = Target::new(probe, probe.in_program.as_ref()?);
                Some(target.with_files_of(known(probe)))
            })
            .collect();
        self.prepare();
        self.files.read(&self.running, |reader, view| {
            let mapped = match has_new {
                true => reader.mapped(view).unwrap_or_default(),
                false => Vec::new(),
            };
            mapped
                .into_iter()
                .for_each(|file| self.bind(reader, &mut targets, file));
        });
        self.targets.store(Arc::new(targets));
        self.rebuild(paused, &[], &BTreeSet::new())
    }

    /// Whether the event at the entry of a kernel function, with these registers, changes the pages. Called on the vCPU's thread.
    pub(crate) fn concerns(&self, event: FileEvent, regs: &kvm_regs) -> bool {
        let targets = self.targets.load();
        if targets.is_empty() {
            return false;
        }
        let change = self.events.change(&self.running.kernel, event, regs);
        let concerns = change.and_then(|change| {
            self.files.read(&self.running, |reader, _| match change {
                FileChange::Mapped(Gva(0)) => false,
                FileChange::Mapped(file) => self.is_news(reader, &targets, file),
                FileChange::Added(added) => {
                    let Some(added) = numbered(reader, added) else {
                        return false;
                    };
                    self.events.remember(added);
                    !announced(reader, &wanted(&targets), &added).is_empty()
                }
            })
        });
        concerns.unwrap_or(false)
    }

    /// Whether the file at `file` is a target's that is not known, or a page of it has come unseen.
    fn is_news(&self, reader: &FileReader<'_>, targets: &[Target], file: Gva) -> bool {
        let Some(pages) = reader.pages_of(file) else {
            return false;
        };
        let table = self.hidden.table.load();
        let has_come = wanted(targets).keys().any(|(known, number)| {
            let page = || reader.page(known, *number);
            let is_hidden = |page| table.hides(page, *known, *number);
            known.pages() == pages && page().is_some_and(|page| !is_hidden(page))
        });
        let wants = || match reader.open(file) {
            Ok(Some(file)) => targets.iter().any(|target| target.wants(&file)),
            _ => false,
        };
        has_come || wants()
    }

    /// Handles the event at the entry of a kernel function, with these registers. The other vCPUs are paused.
    pub(crate) fn on_event(
        &self,
        paused: &dyn Paused,
        event: FileEvent,
        regs: &kvm_regs,
    ) -> Result<(), GuestError> {
        let Some(change) = self.events.change(&self.running.kernel, event, regs) else {
            return Ok(());
        };
        let mut targets = self.targets.load_full();
        let pages = self.files.read(&self.running, |reader, _| match change {
            FileChange::Mapped(file) => {
                let bound: &mut Vec<Target> = Arc::make_mut(&mut targets);
                self.bind(reader, bound, file);
                // The kernel may be about to add pages to the file.
                let (wanted, recent) = (wanted(&targets), self.events.recent());
                let pages = recent.iter().flat_map(|it| announced(reader, &wanted, it));
                pages.collect()
            }
            FileChange::Added(added) => match numbered(reader, added) {
                Some(added) => announced(reader, &wanted(&targets), &added),
                None => Vec::new(),
            },
        });
        self.targets.store(targets);
        self.rebuild(paused, &pages.unwrap_or_default(), &BTreeSet::new())
    }

    /// Compares the hidden pages with the page cache; an instruction would have written to those in `written`. Returns whether the hidden
    /// pages have changed. The other vCPUs are paused.
    pub(crate) fn refresh(
        &self,
        paused: &dyn Paused,
        written: &BTreeSet<Gpa>,
    ) -> Result<bool, GuestError> {
        let before = self.hidden.table.load().addresses();
        self.rebuild(paused, &[], written)?;
        Ok(before != self.hidden.table.load().addresses())
    }

    /// Counts for each probe that an execution may have been missed.
    pub(crate) fn miss_all(&self) {
        for target in self.targets.load().iter() {
            target.probe.counters.miss(Missed::Unprotected);
        }
    }

    /// Counts a miss for each probe on a page of a file that is in memory and was not hidden: the kernel has put it there without an event that
    /// hyprobe knows.
    pub(crate) fn miss_unseen(&self) {
        let targets = self.targets.load();
        self.files.read(&self.running, |reader, _| {
            self.miss_unseen_of(reader, &targets)
        });
    }

    fn miss_unseen_of(&self, reader: &FileReader<'_>, targets: &[Target]) {
        let (table, wanted) = (self.hidden.table.load(), wanted(targets));
        for (file, number) in table.expected() {
            let exists = reader.exists(&file);
            let page = reader.page(&file, number).filter(|_| exists);
            if page.is_some_and(|page| !table.hides(page, file, number)) {
                let sites = wanted.get(&(file, number)).into_iter().flatten();
                sites.for_each(|site| site.probe.counters.miss(Missed::Unprotected));
            }
        }
    }

    fn bind(&self, reader: &FileReader<'_>, targets: &mut [Target], file: Gva) {
        let Ok(Some(file)) = reader.open(file) else {
            return;
        };
        for target in targets.iter_mut().filter(|target| target.wants(&file)) {
            let refused = target.bind(reader, &file).err();
            if let Some(why) = refused
                .as_ref()
                .filter(|why| target.refused.as_ref() != Some(why))
            {
                let text = format!("{} is not probed: {why}", file.path);
                self.reporter.note(Some(&target.probe), text);
            }
            if refused.as_ref().is_some_and(Unbound::may_execute) {
                // The probe may be armed in other files of the path, or later.
                target.probe.counters.miss(Missed::Unprotected);
            }
            target.refused = refused;
        }
    }

    /// Hides the pages of all targets that are in memory, and those that are announced. Pages that were announced before stay hidden until
    /// they are in the file, or an instruction would have written to them.
    fn rebuild(
        &self,
        paused: &dyn Paused,
        added: &[Announced],
        written: &BTreeSet<Gpa>,
    ) -> Result<(), GuestError> {
        let mut targets = self.targets.load_full();
        let before = self.hidden.table.load_full();
        let table = self.files.read(&self.running, |reader, _| {
            let targets: &mut Vec<Target> = Arc::make_mut(&mut targets);
            targets
                .iter_mut()
                .for_each(|target| target.forget_gone(reader));
            self.miss_unseen_of(reader, targets);
            let wanted = wanted(targets);
            let mut table = CodeTable::expecting(wanted.keys().copied());
            let mut insert = |gpa: Gpa, file, number, sites: &[CodeSite], announced| {
                if self.can_hide(gpa) && table.holding(gpa).is_none() {
                    let sites = sites.to_vec();
                    let page = CodePage {
                        file,
                        number,
                        sites,
                        announced,
                    };
                    table.insert(gpa, page);
                }
            };
            // A page in a file is announced no longer.
            for ((file, number), sites) in &wanted {
                if let Some(gpa) = reader.page(file, *number) {
                    insert(gpa, *file, *number, sites, false);
                }
            }
            for ((file, number), sites) in &wanted {
                let is_it = |page: &CodePage| page.file == *file && page.number == *number;
                let earlier = before
                    .iter()
                    .filter(|(gpa, page)| is_it(page) && page.announced && !written.contains(gpa));
                let new = added.iter();
                let new = new.filter(|it| it.file == *file && it.number == *number);
                let all = earlier.map(|(gpa, _)| gpa).chain(new.map(|it| it.gpa));
                all.for_each(|gpa| insert(gpa, *file, *number, sites, true));
            }
            table
        });
        let table = table.unwrap_or_default();
        if let Err(error) = self.protections.hide(paused, table.addresses()) {
            if matches!(
                error,
                GuestError::Protect(ProtectError::Slot(SlotError::Refused { .. }))
            ) {
                return Err(error);
            }
            return self.refuse_all(paused, &error);
        }
        self.hidden.table.store(Arc::new(table));
        targets.iter().for_each(show_state);
        self.targets.store(targets);
        Ok(())
    }

    /// Whether the page is RAM without plants. Only a false page cache names others.
    fn can_hide(&self, gpa: Gpa) -> bool {
        let in_ram = self.running.memory.ranges();
        in_ram.iter().any(|range| range.contains(&gpa)) && !self.running.planter.pages().keeps(gpa)
    }

    /// Refuses all targets: their pages cannot be hidden.
    fn refuse_all(&self, paused: &dyn Paused, error: &GuestError) -> Result<(), GuestError> {
        let reason = chain(error);
        for target in self.targets.swap(Arc::default()).iter() {
            self.reporter
                .note(Some(&target.probe), format!("cannot be armed: {reason}"));
            let status = &target.probe.status;
            status.set_state(ProbeState::Refused, Some(reason.clone()));
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

/// The pages with the instructions of all targets.
fn wanted(targets: &[Target]) -> WantedPages {
    let mut pages = WantedPages::new();
    targets
        .iter()
        .for_each(|target| target.add_wanted(&mut pages));
    pages
}

/// The folio with the number of its first page.
fn numbered(reader: &FileReader<'_>, added: AddedFolio) -> Option<AddedFolio> {
    let first = match added.first {
        FirstPage::Number(number) => number,
        FirstPage::Of(folio) => reader.first_of(folio)?,
    };
    let first = FirstPage::Number(first);
    Some(AddedFolio { first, ..added })
}

/// The wanted pages in the folio.
fn announced(reader: &FileReader<'_>, wanted: &WantedPages, added: &AddedFolio) -> Vec<Announced> {
    let FirstPage::Number(first) = added.first else {
        return Vec::new();
    };
    let in_file = wanted
        .keys()
        .filter(|(file, _)| file.pages() == added.pages);
    let pages = in_file.filter_map(|(file, number)| {
        Some(Announced {
            file: *file,
            number: *number,
            gpa: reader.page_in(added.folio, first, *number)?,
        })
    });
    pages.collect()
}
