//! The search for the files that programs have mapped before a probe was added.
//!
//! The kernel may be on its way into a change when the event probes are armed: behind the event, and in front of the change. So the search is
//! repeated some milliseconds later, until no program's mappings are about to change.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};

use address::Gva;
use errors::chain;
use inspect::{FileReader, KernelView, MappedFiles, OpenFile};
use text::Paused;

use super::target::{Searched, Searches, Target};
use super::{Mapping, Uprobes};
use crate::registry::Missed;

/// The most searches for a probe.
const MOST_SEARCHES: u32 = 20;

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Search {
    /// The `mm_struct` of each program whose mappings are about to change.
    changing: BTreeSet<Gva>,
    /// Why programs have been left out.
    unread: Option<String>,
    /// Whether the search has read as much as it may: the next would not read more.
    is_exhausted: bool,
}

impl Uprobes {
    fn searches(&self) -> MutexGuard<'_, Searches> {
        self.searches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to search for the files of `targets` that are new.
    pub(super) fn begin_search(
        &self,
        reader: &FileReader<'_>,
        view: &KernelView<'_>,
        targets: &mut [Target],
    ) {
        // The first mapping of a file comes after the event probes are armed.
        if !self.running.boot_patched.get() {
            targets
                .iter_mut()
                .for_each(|target| target.searched = Searched::Done);
        } else if targets
            .iter()
            .any(|target| target.searched == Searched::Never)
        {
            // The rest is left to the next search.
            let changing = self.search(reader, view, targets).changing;
            let left = MOST_SEARCHES;
            *self.searches() = Searches { left, changing };
            for target in targets {
                if target.searched == Searched::Never {
                    target.searched = Searched::Once;
                }
            }
        }
    }

    /// Whether the files of a target are still searched for. Any thread may ask.
    pub(crate) fn is_searching(&self) -> bool {
        self.searches().left > 0
    }

    /// Searches again. The vCPUs are paused.
    pub(crate) fn search_again(&self, paused: &dyn Paused) {
        let mut targets = self.targets.load_full();
        let search = self.files.read(&self.running, |reader, view| {
            let targets: &mut Vec<Target> = Arc::make_mut(&mut targets);
            self.search(reader, view, targets)
        });
        let Search {
            changing,
            unread,
            is_exhausted,
        } = search.unwrap_or_default();
        let rest = {
            let mut searches = self.searches();
            searches.left = match is_exhausted {
                true => 0,
                false => searches.left.saturating_sub(1),
            };
            // The event probes see each change that has begun since the first search.
            searches.changing.retain(|memory| changing.contains(memory));
            match (unread, searches.changing.is_empty()) {
                (None, true) => {
                    searches.left = 0;
                    None
                }
                (None, false) => Some("the mappings of a program do not come to rest".to_owned()),
                (Some(why), _) => Some(why),
            }
        };
        if !self.is_searching() {
            let targets = Arc::make_mut(&mut targets).iter_mut();
            for target in targets.filter(|target| target.searched != Searched::Done) {
                target.searched = Searched::Done;
                if let Some(why) = &rest {
                    target.probe.counters.miss(Missed::Unprotected);
                    let path = &target.code.path;
                    let text = format!("programs may execute {path} unseen: {why}");
                    self.reporter.note(Some(&target.probe), text);
                }
            }
        }
        self.targets.store(targets);
        if let Err(error) = self.rebuild(paused, &[], &BTreeSet::new()) {
            let text = format!("probes in programs cannot be armed: {}", chain(&error));
            self.reporter.note(None, text);
        }
    }

    /// Binds the targets to the files that programs have mapped.
    fn search(
        &self,
        reader: &FileReader<'_>,
        view: &KernelView<'_>,
        targets: &mut [Target],
    ) -> Search {
        let MappedFiles {
            files,
            left_out,
            changing,
        } = match reader.mapped(view) {
            Ok(mapped) => mapped,
            Err(error) => {
                return Search {
                    unread: Some(format!("the tasks cannot be listed: {error}")),
                    ..Search::default()
                };
            }
        };
        let mut unread = 0_usize;
        for (file, copied) in files {
            reader.renew();
            match reader.open(file) {
                Ok(Some(file)) => {
                    self.bind(reader, targets, &file, Mapping::Made);
                    self.miss_copies(targets, &file, &copied);
                }
                Ok(None) => (),
                Err(_) => unread += 1,
            }
        }
        let is_exhausted = reader.is_exhausted();
        let unread = match (left_out, unread) {
            _ if is_exhausted => Some("there are too many mappings".to_owned()),
            (0, 0) => None,
            (0, files) => Some(format!("{files} mapped files cannot be read")),
            (programs, _) => Some(format!(
                "the mappings of {programs} programs cannot be read"
            )),
        };
        Search {
            changing,
            unread,
            is_exhausted,
        }
    }

    /// Counts the copies that a program may have of pages of a file, for each target whose first search this is.
    fn miss_copies(&self, targets: &[Target], file: &OpenFile, copied: &[Range<u64>]) {
        for target in targets {
            if target.searched == Searched::Never && target.has_page_in(&file.id, copied) {
                self.copies.miss(&target.probe);
            }
        }
    }
}
