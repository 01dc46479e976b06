//! The armed watchpoints: never changed, only replaced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use address::{Gpa, Gva};
use events::ProbeId;
use introspect::PhysMemory;
use manifest::WatchedAccess;
use text::Spot;
use vmm::{BreakpointBytes, Protection};

use crate::debug_registers::DataRegister;
use crate::registry::Probe;
#[cfg(test)]
use crate::registry::Purpose;
use crate::resolve::WORD_BYTES;

/// The bytes of a watchpoint in memory, or a copy of a per-CPU variable: on one page or on two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchedBytes {
    /// The run-time address.
    pub(crate) at: Gva,
    pub(crate) spot: Spot,
    pub(crate) len: usize,
    pub(crate) access: WatchedAccess,
    /// The processor whose copy of a per-CPU variable it is.
    pub(crate) copy: Option<u16>,
}

impl WatchedBytes {
    /// The pages with the bytes.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Gpa> + use<> {
        self.spot.pages(self.len)
    }

    /// The guest-physical address of the byte with the offset.
    fn gpa_of(&self, offset: usize) -> Option<Gpa> {
        match offset.checked_sub(self.spot.room()) {
            None => Some(self.spot.gpa.wrapping_add(offset as u64)),
            Some(beyond) => Some(self.spot.beyond?.wrapping_add(beyond as u64)),
        }
    }

    /// The words of the watchpoint of `probe`: one, if up to 8 bytes are on one page; otherwise, words end at multiples of 8.
    pub(crate) fn words(self, probe: &Arc<Probe>) -> impl Iterator<Item = Watch> {
        let is_one = self.len <= WORD_BYTES && self.len <= self.spot.room();
        let mut offset = 0;
        std::iter::from_fn(move || {
            let (at, rest) = (self.at.wrapping_add(offset as u64), self.len - offset);
            let in_word = WORD_BYTES - usize::try_from(at.0 % WORD_BYTES as u64).unwrap_or(0);
            let len = if is_one { rest } else { rest.min(in_word) };
            let gpa = self.gpa_of(offset).filter(|_| len > 0)?;
            let word = Watch {
                probe: Arc::clone(probe),
                at,
                gpa,
                offset: u16::try_from(offset).unwrap_or(u16::MAX),
                len,
                access: self.access,
                copy: self.copy,
                last: Arc::default(),
            };
            offset += len;
            Some(word)
        })
    }
}

/// An armed watchpoint, or a word of one.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) probe: Arc<Probe>,
    /// The run-time address of the bytes.
    pub(crate) at: Gva,
    pub(crate) gpa: Gpa,
    /// The number of the watchpoint's bytes in front of these.
    pub(crate) offset: u16,
    /// 1 to 8; the bytes are on one page.
    pub(crate) len: usize,
    /// The accesses that are hits.
    pub(crate) access: WatchedAccess,
    /// The processor whose copy of a per-CPU variable it is.
    pub(crate) copy: Option<u16>,
    /// The value behind the last write that is known, of a word with a debug register.
    pub(crate) last: Arc<AtomicU64>,
}

/// The identity of a word, in the order of the table.
pub(crate) type WatchKey = (Gpa, ProbeId);

impl Watch {
    pub(crate) fn key(&self) -> WatchKey {
        (self.gpa, self.probe.id)
    }

    /// The watched bytes, as a number.
    pub(crate) fn value(&self, memory: &dyn PhysMemory) -> u64 {
        let mut bytes = [0; WORD_BYTES];
        // The bytes are RAM: the page could be protected.
        let _ = memory.read(self.gpa, &mut bytes[..self.len.min(WORD_BYTES)]);
        u64::from_le_bytes(bytes)
    }

    /// The debug register that the word has in place of a protected page.
    pub(crate) fn register(&self) -> Option<DataRegister> {
        let bytes = BreakpointBytes::new(self.at, self.len)?;
        self.access.is_in_register().then(|| DataRegister {
            at: self.at,
            bytes,
            gpa: self.gpa,
            watchpoints: vec![self.probe.id],
        })
    }

    /// The value behind the last write that is known, of a word with a debug register.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Takes note of the value behind a write. Returns the value behind the write before.
    pub(crate) fn replace_last(&self, value: u64) -> u64 {
        // Changed under the lock of the watchpoints, or with the vCPUs paused.
        self.last.swap(value, Ordering::Relaxed)
    }

    /// Whether a byte of the word is among the `len` bytes from `gpa` on.
    pub(crate) fn overlaps(&self, gpa: Gpa, len: usize) -> bool {
        self.gpa.0 < gpa.0.saturating_add(len as u64) && gpa.0 < self.gpa.0 + self.len as u64
    }
}

/// The words of the armed watchpoints, by address; those at one address in the order of registration.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchTable {
    watches: Vec<Watch>,
    pages: BTreeMap<Gpa, Protection>,
    probes: BTreeMap<ProbeId, (Arc<Probe>, WatchedAccess)>,
    /// Whether any read is a hit.
    has_reads: bool,
}

impl WatchTable {
    pub(crate) fn new(mut watches: Vec<Watch>) -> Self {
        watches.sort_by_key(Watch::key);
        let mut pages = BTreeMap::new();
        for watch in watches
            .iter()
            .filter(|watch| !watch.access.is_in_register())
        {
            let protection = pages.entry(watch.gpa.page()).or_insert(Protection::Writes);
            if watch.access.has_reads() {
                *protection = Protection::Accesses;
            }
        }
        let of_probe = |watch: &Watch| (watch.probe.id, (Arc::clone(&watch.probe), watch.access));
        Self {
            probes: watches.iter().map(of_probe).collect(),
            has_reads: watches.iter().any(|watch| watch.access.has_reads()),
            watches,
            pages,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    pub(crate) fn watches(&self) -> &[Watch] {
        &self.watches
    }

    /// The probes with words, each once.
    pub(crate) fn probes(&self) -> &BTreeMap<ProbeId, (Arc<Probe>, WatchedAccess)> {
        &self.probes
    }

    /// The pages to protect.
    pub(crate) fn pages(&self) -> &BTreeMap<Gpa, Protection> {
        &self.pages
    }

    /// Whether writes to the page of `gpa` exit.
    pub(crate) fn protects(&self, gpa: Gpa) -> bool {
        self.pages.contains_key(&gpa.page())
    }

    /// Whether reads of the page of `gpa` exit, too.
    pub(crate) fn hides(&self, gpa: Gpa) -> bool {
        self.has_reads && self.pages.get(&gpa.page()) == Some(&Protection::Accesses)
    }

    /// Whether any read is a hit.
    pub(crate) fn has_reads(&self) -> bool {
        self.has_reads
    }

    /// The position of a word in [`watches`](Self::watches).
    pub(crate) fn index_of(&self, key: WatchKey) -> Option<usize> {
        self.watches.binary_search_by_key(&key, Watch::key).ok()
    }

    /// The words with a byte among the `len` bytes from `gpa` on.
    pub(crate) fn touched(&self, gpa: Gpa, len: usize) -> impl Iterator<Item = &Watch> {
        let is_before = |watch: &Watch| watch.gpa.0 + WORD_BYTES as u64 <= gpa.0;
        let from = self.watches[self.watches.partition_point(is_before)..].iter();
        from.take_while(move |watch| watch.gpa.0 < gpa.0.saturating_add(len as u64))
            .filter(move |watch| watch.overlaps(gpa, len))
    }

    /// The words on the page at `page`.
    pub(crate) fn on_page(&self, page: Gpa) -> impl Iterator<Item = &Watch> {
        let from = self.watches.partition_point(|watch| watch.gpa < page);
        let from = self.watches[from..].iter();
        from.take_while(move |watch| watch.gpa.page() == page)
    }
}

#[cfg(test)]
impl WatchTable {
    /// Watchpoints of writes at guest-physical addresses, each with its length.
    pub(crate) fn at(places: impl IntoIterator<Item = (u64, usize)>) -> Self {
        let places = places.into_iter();
        Self::with(places.map(|(gpa, len)| (gpa, len, WatchedAccess::Writes)))
    }

    /// Watchpoints at guest-physical addresses, each with its length and its accesses.
    pub(crate) fn with(places: impl IntoIterator<Item = (u64, usize, WatchedAccess)>) -> Self {
        let watches = places
            .into_iter()
            .zip(1..)
            .flat_map(|((gpa, len, access), id)| {
                let probe = Probe::new(ProbeId(id), "watch:x".into(), Purpose::Count, None, true);
                let bytes = WatchedBytes {
                    at: Gva(gpa),
                    spot: Spot::contiguous(Gpa(gpa)),
                    len,
                    access,
                    copy: None,
                };
                bytes.words(&Arc::new(probe)).collect::<Vec<_>>()
            });
        Self::new(watches.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_watchpoints_share_a_byte_with_the_write() {
        let table = WatchTable::at([(0x1010, 8), (0x1000, 4), (0x1004, 1), (0x1010, 2)]);
        let touched = |gpa, len| -> Vec<(u64, usize)> {
            let touched = table.touched(Gpa(gpa), len);
            touched.map(|watch| (watch.gpa.0, watch.len)).collect()
        };
        assert_eq!(touched(0xff8, 8), []);
        assert_eq!(touched(0xff8, 9), [(0x1000, 4)]);
        assert_eq!(touched(0x1003, 1), [(0x1000, 4)]);
        assert_eq!(touched(0x1003, 2), [(0x1000, 4), (0x1004, 1)]);
        assert_eq!(touched(0x1005, 11), []);
        assert_eq!(touched(0x1011, 1), [(0x1010, 8), (0x1010, 2)]);
        assert_eq!(touched(0x1017, 4), [(0x1010, 8)]);
        assert_eq!(touched(0x1018, 8), []);
        assert_eq!(touched(0, 0x2000).len(), 4);
    }

    #[test]
    fn each_page_with_a_watchpoint_is_protected() {
        let table = WatchTable::at([(0x1ff8, 8), (0x1000, 4), (0x5008, 8)]);
        let writes = |page| (Gpa(page), Protection::Writes);
        assert_eq!(table.pages(), &[writes(0x1000), writes(0x5000)].into());
        assert!(table.protects(Gpa(0x1abc)) && !table.protects(Gpa(0x2000)));
        assert_eq!(table.on_page(Gpa(0x1000)).count(), 2);
        assert_eq!(table.on_page(Gpa(0x2000)).count(), 0);
        assert!(WatchTable::default().is_empty());
    }

    #[test]
    fn page_with_a_watchpoint_of_reads_is_hidden() {
        use WatchedAccess::{Both, Reads, Writes};
        let table = WatchTable::with([
            (0x1000, 4, Writes),
            (0x1008, 4, Reads),
            (0x2000, 4, Both),
            (0x3000, 4, Writes),
        ]);
        let hidden = [0x1004, 0x2ffc, 0x3000, 0x4000].map(|gpa| table.hides(Gpa(gpa)));
        assert_eq!(hidden, [true, true, false, false]);
        assert!(table.has_reads() && table.protects(Gpa(0x3000)));
        assert!(!WatchTable::at([(0x1000, 8)]).has_reads());
    }

    #[test]
    fn bytes_on_two_pages_are_words_on_each_of_the_pages() {
        let probe = Probe::new(ProbeId(1), "watch:x".into(), Purpose::Count, None, true);
        let bytes = WatchedBytes {
            at: Gva(0x7ffc),
            spot: Spot {
                gpa: Gpa(0x5ffc),
                beyond: Some(Gpa(0x3000)),
            },
            len: 16,
            access: WatchedAccess::Writes,
            copy: None,
        };
        let pages: Vec<_> = bytes.pages().collect();
        assert_eq!(pages, [Gpa(0x5000), Gpa(0x3000)]);
        let probe = Arc::new(probe);
        let words = bytes.words(&probe);
        let words: Vec<_> = words
            .map(|word| (word.at.0, word.gpa.0, word.offset, word.len))
            .collect();
        let expected = [
            (0x7ffc, 0x5ffc, 0, 4),
            (0x8000, 0x3000, 4, 8),
            (0x8008, 0x3008, 12, 4),
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn words_of_a_watchpoint_end_at_multiples_of_8_and_at_pages() {
        let words = |gpa, len| -> Vec<(u64, u16, usize)> {
            let table = WatchTable::at([(gpa, len)]);
            let watches = table.watches().iter();
            watches
                .map(|watch| (watch.gpa.0, watch.offset, watch.len))
                .collect()
        };
        assert_eq!(words(0x1003, 8), [(0x1003, 0, 8)]);
        assert_eq!(words(0x1000, 3), [(0x1000, 0, 3)]);
        assert_eq!(
            words(0x1004, 18),
            [(0x1004, 0, 4), (0x1008, 4, 8), (0x1010, 12, 6)]
        );
        assert_eq!(words(0x1ffd, 5), [(0x1ffd, 0, 3), (0x2000, 3, 2)]);
        assert_eq!(words(0x1001, 4096).len(), 513);
    }
}
