//! The pages of files that have probed instructions: never changed, only replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use address::{Gpa, PAGE_BYTES};
use inspect::FileId;

use crate::registry::Probe;

/// A probed instruction.
#[derive(Clone, Debug)]
pub(crate) struct CodeSite {
    pub(crate) probe: Arc<Probe>,
    /// The offset in the file, bytes.
    pub(crate) offset: u64,
    /// The name in events.
    pub(crate) symbol: Arc<str>,
}

/// A page of a file, in memory.
#[derive(Clone, Debug)]
pub(crate) struct CodePage {
    pub(crate) file: FileId,
    /// The number within the file.
    pub(crate) number: u64,
    /// In the order of registration.
    pub(crate) sites: Vec<CodeSite>,
    /// Whether the kernel is about to add the page to the file, and has not been seen to have done so.
    pub(crate) announced: bool,
}

impl CodePage {
    /// The probed instructions at the offset `within` the page.
    pub(crate) fn sites_at(&self, within: u64) -> impl Iterator<Item = &CodeSite> {
        let is_here = move |site: &&CodeSite| site.offset % PAGE_BYTES == within;
        self.sites.iter().filter(is_here)
    }
}

/// The pages by their addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodeTable(BTreeMap<Gpa, CodePage>);

impl CodeTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The page with the byte at `gpa`.
    pub(crate) fn holding(&self, gpa: Gpa) -> Option<&CodePage> {
        self.0.get(&gpa.page())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Gpa, &CodePage)> {
        self.0.iter().map(|(gpa, page)| (*gpa, page))
    }

    pub(crate) fn addresses(&self) -> BTreeSet<Gpa> {
        self.0.keys().copied().collect()
    }

    pub(crate) fn insert(&mut self, gpa: Gpa, page: CodePage) {
        self.0.insert(gpa, page);
    }
}
