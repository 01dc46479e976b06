//! A file with probed instructions.

use std::collections::BTreeSet;
use std::sync::Arc;

use inspect::{CounterReaders, FileId, FileReader, FileVersion, MarkCounter, OpenFile};

use super::places::{BoundPlace, FoundPlaces, MAX_PLACES, Unbound, WithoutHits};

/// The most searches of a file for instructions that read counters of marks: most files are never whole in memory. The loader
/// maps a file about four times for a program.
const MAX_SEARCHES: u8 = 64;

/// A file with probed instructions, and with these contents.
#[derive(Clone, Debug)]
pub(super) struct BoundFile {
    pub(super) file: FileId,
    pub(super) version: FileVersion,
    pub(super) places: Arc<[BoundPlace]>,
    /// The counters of the marks, by mark.
    counters: Arc<[Vec<MarkCounter>]>,
    /// The instructions that read the counters.
    pub(super) readers: Arc<CounterReaders>,
    searches_left: u8,
    found: WithoutHits,
}

impl BoundFile {
    pub(super) fn new(file: &OpenFile, found: FoundPlaces) -> Self {
        Self {
            file: file.id,
            version: file.version,
            places: found.places.into(),
            counters: found.counters.into(),
            readers: Arc::default(),
            searches_left: MAX_SEARCHES,
            found: found.without_hits,
        }
    }

    /// Whether the file has these contents.
    pub(super) fn is(&self, file: &OpenFile) -> bool {
        self.file.is_same_file(&file.id) && self.version == file.version
    }

    /// The same contents, after the kernel has read the file anew: its `address_space` may be elsewhere.
    pub(super) fn moved_to(&self, file: FileId) -> Self {
        Self {
            file,
            ..self.clone()
        }
    }

    /// Whether code that has not been in memory yet may read the counters of the marks.
    pub(super) fn is_partial(&self) -> bool {
        self.readers.is_partial()
    }

    /// Searches the pages that have come into memory since the last search, for instructions that read the counters of the marks.
    ///
    /// # Errors
    ///
    /// If the instructions are on too many pages.
    pub(super) fn search(&mut self, reader: &FileReader<'_>) -> Result<(), Unbound> {
        if self.counters.is_empty() || self.searches_left == 0 {
            return Ok(());
        }
        self.searches_left -= 1;
        let counters = self.counters.iter().flatten();
        let readers = reader.counter_readers(&self.file, counters, &self.readers);
        self.readers = Arc::new(readers);
        match self.pages().collect::<BTreeSet<_>>().len() {
            pages if pages > MAX_PLACES => Err(Unbound::TooManyPages(pages)),
            _ => Ok(()),
        }
    }

    /// The numbers of the pages with probed instructions, or with instructions that read the counters of probed marks.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> {
        let of_places = self.places.iter().flat_map(BoundPlace::pages);
        of_places.chain(self.readers.pages.keys().copied())
    }

    /// The places without hits.
    pub(super) fn without_hits(&self) -> WithoutHits {
        let guarded = self.counters.iter();
        WithoutHits {
            guarded: guarded.filter(|it| self.readers.is_guarded(it)).count(),
            absent: self.readers.absent,
            unsearched: self.readers.left_out,
            ..self.found
        }
    }
}
