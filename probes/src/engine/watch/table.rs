//! The armed watchpoints: never changed, only replaced.

use std::collections::BTreeSet;
use std::sync::Arc;

use address::{Gpa, Gva};
use events::ProbeId;
use introspect::PhysMemory;

use crate::registry::Probe;
#[cfg(test)]
use crate::registry::Purpose;

/// The most bytes of a watchpoint.
const MAX_BYTES: usize = 8;

/// An armed watchpoint.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) probe: Arc<Probe>,
    /// The run-time address of the bytes.
    pub(crate) at: Gva,
    pub(crate) gpa: Gpa,
    /// 1 to 8; the bytes are on one page.
    pub(crate) len: usize,
}

/// The identity of a watchpoint, in the order of the table.
pub(crate) type WatchKey = (Gpa, ProbeId);

impl Watch {
    pub(crate) fn key(&self) -> WatchKey {
        (self.gpa, self.probe.id)
    }

    /// The watched bytes, as a number.
    pub(crate) fn value(&self, memory: &dyn PhysMemory) -> u64 {
        let mut bytes = [0; MAX_BYTES];
        // The bytes are RAM: the page could be protected.
        let _ = memory.read(self.gpa, &mut bytes[..self.len.min(MAX_BYTES)]);
        u64::from_le_bytes(bytes)
    }

    fn overlaps(&self, gpa: Gpa, len: usize) -> bool {
        self.gpa.0 < gpa.0.saturating_add(len as u64) && gpa.0 < self.gpa.0 + self.len as u64
    }
}

/// The armed watchpoints, by address; those at one address in the order of registration.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchTable {
    watches: Vec<Watch>,
    pages: BTreeSet<Gpa>,
}

impl WatchTable {
    pub(crate) fn new(mut watches: Vec<Watch>) -> Self {
        watches.sort_by_key(Watch::key);
        let pages = watches.iter().map(|watch| watch.gpa.page()).collect();
        Self { watches, pages }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    pub(crate) fn watches(&self) -> &[Watch] {
        &self.watches
    }

    /// The pages to protect.
    pub(crate) fn pages(&self) -> &BTreeSet<Gpa> {
        &self.pages
    }

    /// Whether the page of `gpa` is protected.
    pub(crate) fn protects(&self, gpa: Gpa) -> bool {
        self.pages.contains(&gpa.page())
    }

    /// The watchpoints with a byte among the `len` bytes from `gpa` on.
    pub(crate) fn touched(&self, gpa: Gpa, len: usize) -> impl Iterator<Item = &Watch> {
        let is_before = |watch: &Watch| watch.gpa.0 + MAX_BYTES as u64 <= gpa.0;
        let from = self.watches[self.watches.partition_point(is_before)..].iter();
        from.take_while(move |watch| watch.gpa.0 < gpa.0.saturating_add(len as u64))
            .filter(move |watch| watch.overlaps(gpa, len))
    }

    /// The watchpoints on the page at `page`.
    pub(crate) fn on_page(&self, page: Gpa) -> impl Iterator<Item = &Watch> {
        let from = self.watches.partition_point(|watch| watch.gpa < page);
        let from = self.watches[from..].iter();
        from.take_while(move |watch| watch.gpa.page() == page)
    }
}

#[cfg(test)]
impl WatchTable {
    /// Watchpoints at guest-physical addresses, each with its length.
    pub(crate) fn at(places: impl IntoIterator<Item = (u64, usize)>) -> Self {
        let watches = places.into_iter().zip(1..).map(|((gpa, len), id)| {
            let probe = Probe::new(ProbeId(id), "watch:x".into(), Purpose::Count, None, true);
            Watch {
                probe: Arc::new(probe),
                at: Gva(gpa),
                gpa: Gpa(gpa),
                len,
            }
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
        assert_eq!(table.pages(), &[Gpa(0x1000), Gpa(0x5000)].into());
        assert!(table.protects(Gpa(0x1abc)) && !table.protects(Gpa(0x2000)));
        assert_eq!(table.on_page(Gpa(0x1000)).count(), 2);
        assert_eq!(table.on_page(Gpa(0x2000)).count(), 0);
        assert!(WatchTable::default().is_empty());
    }
}
