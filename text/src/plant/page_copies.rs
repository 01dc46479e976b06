//! The pages with copies of their original bytes: plants and jumps are looked up here.

use std::sync::Arc;

use address::{Gpa, PAGE_LEN};
use arc_swap::{ArcSwap, Guard};

use super::page::{Mark, Page, offset};
use crate::addresses::AddressMap;
use crate::guest::Unwritable;

/// The pages by guest-physical address. A changed copy shares the unchanged pages.
pub(super) type Pages = AddressMap<Arc<Page>>;

/// The pages with copies of their original bytes. Any thread may look up pages at any time, without a lock.
#[derive(Debug, Default)]
pub struct PageCopies(ArcSwap<Pages>);

impl PageCopies {
    /// The present pages, for several lookups.
    pub(super) fn load(&self) -> Guard<Arc<Pages>> {
        self.0.load()
    }

    /// The present pages, to be held during a change.
    pub(super) fn load_full(&self) -> Arc<Pages> {
        self.0.load_full()
    }

    /// Replaces the pages.
    pub(super) fn store(&self, pages: Pages) {
        self.0.store(Arc::new(pages));
    }

    /// The page of `gpa`, or the error of a write there.
    pub(super) fn page(&self, gpa: Gpa) -> Result<Arc<Page>, Unwritable> {
        self.kept(gpa).ok_or(Unwritable { gpa, len: 1 })
    }

    /// The page of `gpa`, if there is a copy of the page's original bytes.
    pub(super) fn kept(&self, gpa: Gpa) -> Option<Arc<Page>> {
        self.load().get(&gpa.page().0).cloned()
    }

    /// Whether `gpa` has the mark.
    pub(super) fn has(&self, mark: Mark, gpa: Gpa) -> bool {
        let pages = self.load();
        pages
            .get(&gpa.page().0)
            .is_some_and(|page| page.has(mark, offset(gpa)))
    }

    /// Whether there is a copy of the original bytes of the page of `gpa`.
    pub fn keeps(&self, gpa: Gpa) -> bool {
        self.load().contains_key(&gpa.page().0)
    }

    /// The plants in `len` bytes from `gpa` on, up to the end of the page.
    pub fn planted(&self, gpa: Gpa, len: usize) -> Vec<Gpa> {
        self.plants(gpa, len, false)
    }

    /// The plants in `len` bytes from `gpa` on that memory shows, up to the end of the page.
    pub fn shown(&self, gpa: Gpa, len: usize) -> Vec<Gpa> {
        self.plants(gpa, len, true)
    }

    fn plants(&self, gpa: Gpa, len: usize, shown: bool) -> Vec<Gpa> {
        self.kept(gpa)
            .map(|page| page.plants(offset(gpa), len, shown))
            .unwrap_or_default()
    }

    /// The jumps that overlap `len` bytes from `gpa` on.
    pub fn jumps(&self, gpa: Gpa, len: usize) -> Vec<Gpa> {
        let here = (PAGE_LEN - offset(gpa)).min(len);
        let beyond = gpa.wrapping_add(here as u64);
        [(gpa, here), (beyond, len - here)]
            .into_iter()
            .filter(|(_, len)| *len > 0)
            .filter_map(|(gpa, len)| Some(self.kept(gpa)?.jumps(offset(gpa), len)))
            .flatten()
            .collect()
    }

    /// Whether a guest write of `data` would change a byte of a jump that memory shows.
    pub fn overwrites_jump(&self, gpa: Gpa, data: &[u8]) -> bool {
        let (here, beyond) = data.split_at((PAGE_LEN - offset(gpa)).min(data.len()));
        let pages = self.load();
        [(gpa, here), (gpa.wrapping_add(here.len() as u64), beyond)]
            .into_iter()
            .any(|(gpa, part)| {
                pages
                    .get(&gpa.page().0)
                    .is_some_and(|page| page.overwrites_jump(offset(gpa), part))
            })
    }
}
