//! The pages of files that have probed instructions: never changed, only replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use address::{Gpa, PAGE_BYTES};
use inspect::FileId;

use super::mark_values::MarkParam;
use crate::registry::Probe;

/// A probed instruction.
#[derive(Clone, Debug)]
pub(crate) struct CodeSite {
    pub(crate) probe: Arc<Probe>,
    /// The offset in the file, bytes.
    pub(crate) offset: u64,
    /// For a probe at returns: the parts of the function, offsets in the file. The site is then on each page of the parts.
    pub(crate) parts: Arc<[Range<u64>]>,
    /// The name in events.
    pub(crate) symbol: Arc<str>,
    /// The operands of the mark; `None` for an instruction that is no mark.
    pub(crate) operands: Option<Arc<[MarkParam]>>,
}

impl CodeSite {
    /// Whether the byte `at` of the file is in the function whose returns are probed.
    pub(crate) fn is_in_function(&self, at: u64) -> bool {
        self.parts.iter().any(|part| part.contains(&at))
    }
}

/// One site of each probe: a probe with a pattern is at several functions of a page.
pub(crate) fn one_of_each(sites: &[CodeSite]) -> impl Iterator<Item = &CodeSite> {
    let of_probes = sites.chunk_by(|one, other| Arc::ptr_eq(&one.probe, &other.probe));
    of_probes.filter_map(<[CodeSite]>::first)
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
    /// The offset in the file of the byte `within` the page.
    pub(crate) const fn offset_of(&self, within: u64) -> u64 {
        self.number.wrapping_mul(PAGE_BYTES).wrapping_add(within)
    }

    /// The probed instructions at the offset `at` in the file. An instruction that may leave a function is probed for its return, too.
    pub(crate) fn sites_at(&self, at: u64, may_leave: bool) -> impl Iterator<Item = &CodeSite> {
        let is_here =
            move |site: &&CodeSite| site.offset == at || (may_leave && site.is_in_function(at));
        self.sites.iter().filter(is_here)
    }
}

/// The pages by their addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodeTable {
    pages: BTreeMap<Gpa, CodePage>,
    /// The pages of files that are hidden as soon as they are in memory.
    expected: BTreeSet<(FileId, u64)>,
}

impl CodeTable {
    /// A table without pages, of which those in `expected` are to be hidden.
    pub(crate) fn expecting(expected: impl Iterator<Item = (FileId, u64)>) -> Self {
        Self {
            pages: BTreeMap::new(),
            expected: expected.collect(),
        }
    }

    /// The expected pages of files.
    pub(crate) fn expected(&self) -> impl Iterator<Item = (FileId, u64)> {
        self.expected.iter().copied()
    }

    /// Whether the page at `gpa` is hidden as the page `number` of `file`.
    pub(crate) fn hides(&self, gpa: Gpa, file: FileId, number: u64) -> bool {
        let held = self.holding(gpa);
        held.is_some_and(|page| page.file == file && page.number == number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The page with the byte at `gpa`.
    pub(crate) fn holding(&self, gpa: Gpa) -> Option<&CodePage> {
        self.pages.get(&gpa.page())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Gpa, &CodePage)> {
        self.pages.iter().map(|(gpa, page)| (*gpa, page))
    }

    pub(crate) fn addresses(&self) -> BTreeSet<Gpa> {
        self.pages.keys().copied().collect()
    }

    pub(crate) fn insert(&mut self, gpa: Gpa, page: CodePage) {
        self.pages.insert(gpa, page);
    }
}
