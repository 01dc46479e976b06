//! Probes in programs: each execution of an instruction of a file is a hit, in every program that maps the file.
//!
//! The page with the instruction, in the page cache, is hidden from the guest ([`vmm::Protection::Accesses`]): each access exits before it
//! takes place. The emulator executes the instructions on the page, and serves reads with the contents. No byte of the guest changes, so a
//! program or the kernel that reads the file finds its own bytes. Details: `docs/uprobes.md`.
//!
//! Threads: vCPUs execute and report on their own threads. Targets and the table change with the vCPUs paused.

mod bound_file;
pub(crate) mod code_hit;
pub(crate) mod code_table;
pub(crate) mod file_events;
pub(crate) mod guest_files;
pub(crate) mod hidden_code;
mod hiding;
mod lost_events;
pub(crate) mod mark_counter;
pub(crate) mod mark_values;
pub(crate) mod places;
pub(crate) mod private_copies;
mod report;
mod returns;
mod search;
pub(crate) mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use address::{Gpa, Gva};
use arc_swap::ArcSwap;
use inspect::{FileId, FileReader, OpenFile};
use text::{GuestError, Paused};
use vmm::kvm_regs;

use crate::engine::plants::Plants;
use crate::engine::programs::Programs;
use crate::engine::protections::Protections;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::returns::program_calls::ProgramCalls;
use crate::engine::running::Running;
use crate::registry::{FileEvent, Missed, Probe};

use code_table::PageCode;
use file_events::{AddedFolio, FileChange, FileEvents, FirstPage};
use guest_files::GuestFiles;
use hidden_code::HiddenCode;
use places::{Unbound, WithoutHits};
use private_copies::PrivateCopies;
use target::{Searches, Target, WantedPages};

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
    pub(crate) copies: Arc<PrivateCopies>,
    pub(crate) calls: Arc<ProgramCalls>,
    pub(crate) files: GuestFiles,
    pub(crate) events: FileEvents,
    /// In the order of registration. Replaced with the vCPUs paused.
    pub(crate) targets: ArcSwap<Vec<Target>>,
    /// Changed with the vCPUs paused.
    pub(crate) searches: Mutex<Searches>,
    /// The misses of the kernel event probes that are counted already.
    pub(crate) lost_events: AtomicU64,
}

/// A page that the kernel is about to add to a file.
#[derive(Clone, Copy, Debug)]
struct Announced {
    file: FileId,
    number: u64,
    gpa: Gpa,
}

/// The mapping by which a file is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapping {
    /// A program has just made it, and cannot use it yet.
    New,
    /// A program has made it before, maybe seen by an earlier search.
    Made,
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
        let known: BTreeMap<_, &Target> = before.iter().map(|it| (it.probe.id, it)).collect();
        let mut targets: Vec<Target> = wanted
            .iter()
            .filter_map(|probe| {
                let target = Target::new(probe, probe.in_program.as_ref()?);
                Some(target.with_files_of(known.get(&probe.id).copied()))
            })
            .collect();
        self.prepare();
        if let Some(event) = self.unseen_event().filter(|_| !wanted.is_empty()) {
            let reason = format!(
                "the engine's own probe at the kernel's function `{}` is not armed",
                event.function()
            );
            self.targets.store(Arc::new(targets));
            return self.refuse_all(paused, &reason);
        }
        self.files.read(&self.running, |reader, view| {
            self.begin_search(reader, view, &mut targets);
        });
        self.targets.store(Arc::new(targets));
        self.replace_table(paused, &[], &BTreeSet::new())
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
                FileChange::Mapped(area) => {
                    let file = reader.file_of(area);
                    file.is_some_and(|file| self.is_news(reader, &targets, file))
                }
                FileChange::Added(added) => {
                    let Some(added) = numbered(reader, added) else {
                        return false;
                    };
                    if added.pages == Gva(0) {
                        // A page of no file, which the kernel moves.
                        return false;
                    }
                    self.events.remember(added);
                    let wanted = wanted_in(&targets, |file| file.pages() == added.pages);
                    !announced(reader, &wanted, &added).is_empty()
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
        let wanted = wanted_in(targets, |known| known.pages() == pages);
        let has_come = wanted.keys().any(|(known, number)| {
            let is_hidden = |page| table.hides(page, *known, *number);
            let page = reader.page(known, *number);
            page.is_some_and(|page| !is_hidden(page))
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
            FileChange::Mapped(area) => {
                let bound: &mut Vec<Target> = Arc::make_mut(&mut targets);
                if let Some(file) = reader.file_of(area)
                    && let Ok(Some(file)) = reader.open(file)
                {
                    self.bind(reader, bound, &file, Mapping::New);
                }
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

    /// Counts a miss for each probe on a page of a file that is in memory and was not hidden: the kernel has added the page without an event known to
    /// hyprobe.
    pub(crate) fn miss_unseen(&self) {
        let targets = self.targets.load();
        self.miss_lost_events(&targets);
        let (table, wanted) = (self.hidden.table.load(), wanted(&targets));
        self.files.read(&self.running, |reader, _| {
            for (file, number) in table.expected() {
                reader.renew();
                let exists = reader.exists(&file);
                let page = reader.page(&file, number).filter(|_| exists);
                if page.is_some_and(|page| !table.hides(page, file, number)) {
                    let code = wanted.get(&(file, number)).into_iter();
                    code.flat_map(PageCode::probes)
                        .for_each(|probe| probe.counters.miss(Missed::Unprotected));
                }
            }
        });
    }

    /// Puts the targets into the file that programs map as the `struct file` at `file`, if it is theirs.
    fn bind(
        &self,
        reader: &FileReader<'_>,
        targets: &mut [Target],
        file: &OpenFile,
        mapping: Mapping,
    ) {
        let wants = |target: &&mut Target| match mapping {
            Mapping::New => target.wants(file),
            // Another mapping adds nothing to what is known.
            Mapping::Made => target.wants(file) && !target.is_in(file),
        };
        for target in targets.iter_mut().filter(wants) {
            // The notes of a file may take all that one answer may read.
            reader.renew();
            let bound = target.bind(reader, file);
            if let Ok(found) = bound {
                self.note_without_hits(target, file, found);
                if found.may_hide_passes() {
                    target.probe.counters.miss(Missed::Unprotected);
                }
            }
            let refused = bound.err();
            let is_known = target.refused == refused;
            if let Some(why) = refused.as_ref().filter(|_| !is_known && target.may_note()) {
                let text = format!("{} is not probed: {why}", file.path);
                self.reporter.note(Some(&target.probe), text);
            }
            let may_execute = refused.as_ref().is_some_and(Unbound::may_execute);
            if may_execute && (mapping == Mapping::New || !is_known) {
                // The probe may be armed in other files of the path, or later.
                target.probe.counters.miss(Missed::Unprotected);
            }
            target.refused = refused;
        }
    }

    /// Notes the functions and marks of the file that have no hits.
    fn note_without_hits(&self, target: &mut Target, file: &OpenFile, found: WithoutHits) {
        if target.replace_without_hits(found) == found {
            return;
        }
        let WithoutHits {
            left_out,
            guarded,
            absent,
            unsearched,
            unusable,
        } = found;
        let path = &file.path;
        let texts = [
            (left_out > 0).then(|| format!(
                "{left_out} functions of {path} with such names are left out: the file does not say where they end, or they are longer than 64 KiB"
            )),
            (guarded > 0).then(|| format!(
                "{guarded} marks of {path} with such names are passed only while their counters (semaphores) are not 0, and hyprobe has found no instruction that reads the counter, or has found one that takes its address for another: passes may need a program in the guest that raises the counter"
            )),
            (absent > 0).then(|| format!(
                "{absent} pages with code of {path} are not in memory, and may read the counters (semaphores) of marks with such names: a program may find a counter that is 0 there, and not pass the mark. The pages are looked for again when a program maps the file"
            )),
            (unsearched > 0).then(|| format!(
                "{unsearched} pages with code of {path} are not searched for instructions that read the counters (semaphores) of marks with such names, because there are too many: a program may find a counter that is 0 there, and not pass the mark"
            )),
            (unusable > 0).then(|| format!(
                "{unusable} notes about marks of {path} are damaged, or name an address without code: passes of their marks are no hits, and count as one miss"
            )),
        ];
        for text in texts.into_iter().flatten() {
            if target.may_note() {
                self.reporter.note(Some(&target.probe), text);
            }
        }
    }
}

/// The pages with the instructions of all targets.
fn wanted(targets: &[Target]) -> WantedPages {
    wanted_in(targets, |_| true)
}

/// The pages with the instructions of all targets in the files that `is_wanted` names.
fn wanted_in(targets: &[Target], is_wanted: impl Fn(&FileId) -> bool) -> WantedPages {
    let mut pages = WantedPages::new();
    targets
        .iter()
        .for_each(|target| target.add_wanted(&is_wanted, &mut pages));
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
