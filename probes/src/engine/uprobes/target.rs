//! Probes in programs, and the files that have their instructions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use address::Gva;
use inspect::{FileId, FileReader, OpenFile, Storage};
use manifest::ProgramCode;

use super::bound_file::BoundFile;
use super::code_table::{CodeCounter, CodeSite, PageCode};
use super::places::{MAX_FILES, NamedPlace, Unbound, WithoutHits};
use crate::registry::{Missed, Probe, Purpose};

/// The most notes about files that are not probed.
const MAX_NOTES: u8 = 16;

/// A probe in the programs that map a file.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) probe: Arc<Probe>,
    pub(crate) code: ProgramCode,
    /// The files that programs have mapped by the path.
    files: Vec<BoundFile>,
    /// The files that the probe has been in of late: the kernel forgets a file that no program uses, and the tables of its functions may not be
    /// in memory when a program maps the file again.
    earlier: VecDeque<BoundFile>,
    /// The last reason against a file, which a note has said.
    pub(crate) refused: Option<Unbound>,
    /// The notes about refused files that may still follow: a program can map any number of files by the path.
    notes_left: u8,
    pub(crate) searched: Searched,
    /// The places without hits that notes have said last.
    without_hits: WithoutHits,
}

/// How far the files have been searched that programs had mapped before the probe came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Searched {
    Never,
    /// Further searches follow.
    Once,
    Done,
}

/// The searches that are still to be made for new targets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Searches {
    pub(crate) left: u32,
    /// The `mm_struct` of each program whose mappings have been about to change at each search so far.
    pub(crate) changing: BTreeSet<Gva>,
}

/// The probed instructions of pages, by file and number.
pub(crate) type WantedPages = BTreeMap<(FileId, u64), PageCode>;

impl Target {
    pub(crate) fn new(probe: &Arc<Probe>, code: &ProgramCode) -> Self {
        Self {
            probe: Arc::clone(probe),
            code: code.clone(),
            files: Vec::new(),
            earlier: VecDeque::new(),
            refused: None,
            notes_left: MAX_NOTES,
            searched: Searched::Never,
            without_hits: WithoutHits::default(),
        }
    }

    /// The files are those of `before`, the same probe.
    pub(crate) fn with_files_of(self, before: Option<&Self>) -> Self {
        match before {
            Some(before) => Self {
                files: before.files.clone(),
                earlier: before.earlier.clone(),
                refused: before.refused.clone(),
                notes_left: before.notes_left,
                searched: before.searched,
                without_hits: before.without_hits,
                ..self
            },
            None => self,
        }
    }

    /// Whether the probe is in the file, by its path, and the file or a part of its contents is not known yet.
    pub(crate) fn wants(&self, file: &OpenFile) -> bool {
        let mut bound = self.files.iter().filter(|bound| bound.file == file.id);
        match bound.next() {
            // Each program that maps a file that is known in part may read a counter unseen.
            Some(bound) => bound.version != file.version || bound.is_partial(),
            None => file.path == self.code.path,
        }
    }

    /// Whether the probe is in the file with these contents.
    pub(crate) fn is_in(&self, file: &OpenFile) -> bool {
        let mut files = self.files.iter();
        files.any(|bound| bound.file == file.id && bound.version == file.version)
    }

    /// The offset of the first instruction in the first of the files.
    pub(crate) fn offset(&self) -> Option<u64> {
        let places = &self.files.first()?.places;
        places.first().map(|place| place.offset)
    }

    /// Replaces the places without hits, and returns the former ones.
    pub(crate) const fn replace_without_hits(&mut self, found: WithoutHits) -> WithoutHits {
        std::mem::replace(&mut self.without_hits, found)
    }

    /// Takes one of the notes about refused files.
    pub(crate) fn may_note(&mut self) -> bool {
        let left = self.notes_left.checked_sub(1);
        self.notes_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Whether a probed instruction of `file` is in one of `pages`.
    pub(crate) fn has_page_in(&self, file: &FileId, pages: &[Range<u64>]) -> bool {
        let mut bound = self.files.iter().filter(|bound| bound.file == *file);
        bound.any(|bound| {
            let mut numbers = bound.pages();
            numbers.any(|number| pages.iter().any(|pages| pages.contains(&number)))
        })
    }

    /// Forgets the files that are gone.
    pub(crate) fn forget_gone(&mut self, reader: &FileReader<'_>) {
        self.files.retain(|bound| reader.exists(&bound.file));
    }

    /// Puts the probe into `file`. Returns the places of its names without hits.
    pub(crate) fn bind(
        &mut self,
        reader: &FileReader<'_>,
        file: &OpenFile,
    ) -> Result<WithoutHits, Unbound> {
        self.forget_gone(reader);
        match file.storage {
            Storage::PageCache => (),
            Storage::Overlay => return Err(Unbound::Storage("in an overlay file system")),
            Storage::HugePages => return Err(Unbound::Storage("in huge pages")),
            Storage::Persistent => return Err(Unbound::Storage("in persistent memory (DAX)")),
            Storage::Fuse => return Err(Unbound::Storage("in a file system of FUSE")),
        }
        let mut known = self.files.iter().chain(&self.earlier);
        let mut bound = match known.find(|known| known.is(file)) {
            Some(known) => known.moved_to(file.id),
            None => {
                let named = NamedPlace {
                    code: &self.code,
                    follows: matches!(self.probe.purpose, Purpose::Return(_)),
                };
                BoundFile::new(file, named.find(reader, file)?)
            }
        };
        // The notes may have taken all that one answer may read.
        reader.renew();
        bound.search(reader)?;
        // With other contents, the instruction is elsewhere.
        self.files.retain(|bound| bound.file != file.id);
        if self.files.len() == MAX_FILES {
            // The inode of a removed file keeps its number until the kernel uses the inode again.
            let unused = self.files.iter().position(|it| !reader.has_pages(&it.file));
            self.files.remove(unused.ok_or(Unbound::TooMany)?);
            // A program may still execute the removed file.
            self.probe.counters.miss(Missed::Unprotected);
        }
        self.earlier.retain(|it| !it.file.is_same_file(&file.id));
        self.earlier.truncate(MAX_FILES - 1);
        self.earlier.push_front(bound.clone());
        let without_hits = bound.without_hits();
        self.files.push(bound);
        Ok(without_hits)
    }

    /// Adds the pages with the instructions, and with those that read counters, in the files that `is_wanted` names.
    pub(crate) fn add_wanted(&self, is_wanted: impl Fn(&FileId) -> bool, wanted: &mut WantedPages) {
        for bound in self.files.iter().filter(|it| is_wanted(&it.file)) {
            let file = bound.file;
            for place in bound.places.iter() {
                for number in place.pages() {
                    let code = wanted.entry((file, number)).or_default();
                    code.sites.push(CodeSite {
                        probe: Arc::clone(&self.probe),
                        offset: place.offset,
                        parts: Arc::clone(&place.parts),
                        symbol: Arc::clone(&place.symbol),
                        operands: place.operands.clone(),
                    });
                }
            }
            for (number, counters) in &bound.readers.pages {
                let code = wanted.entry((file, *number)).or_default();
                code.counters
                    .extend(counters.iter().map(|offset| CodeCounter {
                        offset: *offset,
                        probe: Arc::clone(&self.probe),
                    }));
            }
        }
    }
}
