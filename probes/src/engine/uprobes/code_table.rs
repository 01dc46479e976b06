//! The pages of files that have probed instructions: never changed, only replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use address::{Gpa, PAGE_BYTES};
use inspect::FileId;
use introspect::insn::{Decoded, MemoryUse, relative_address, relative_use};

use super::mark_counter::ReadCounter;
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

/// The counter of a mark, on a page with an instruction that reads the counter.
#[derive(Clone, Debug)]
pub(crate) struct CodeCounter {
    /// See [`inspect::MarkCounter::offset`].
    pub(crate) offset: u64,
    /// The probe at the marks of the counter.
    pub(crate) probe: Arc<Probe>,
}

/// What a page of a file has for probes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageCode {
    /// In the order of registration.
    pub(crate) sites: Vec<CodeSite>,
    pub(crate) counters: Vec<CodeCounter>,
}

impl PageCode {
    /// The probes, each once: a probe with a pattern is at several functions of a page.
    pub(crate) fn probes(&self) -> Vec<Arc<Probe>> {
        let of_sites = self.sites.iter().map(|site| &site.probe);
        let all = of_sites.chain(self.counters.iter().map(|counter| &counter.probe));
        let mut seen = BTreeSet::new();
        let each = all.filter(|probe| seen.insert(Arc::as_ptr(probe)));
        each.cloned().collect()
    }
}

/// A page of a file, in memory.
#[derive(Clone, Debug)]
pub(crate) struct CodePage {
    pub(crate) file: FileId,
    /// The number within the file.
    pub(crate) number: u64,
    pub(crate) code: PageCode,
    /// The probes of the code, which each exit counts.
    pub(crate) probes: Vec<Arc<Probe>>,
    /// Whether the kernel is about to add the page to the file, and has not been seen to have done so.
    pub(crate) announced: bool,
}

impl CodePage {
    pub(crate) fn new(file: FileId, number: u64, code: PageCode, announced: bool) -> Self {
        Self {
            file,
            number,
            probes: code.probes(),
            code,
            announced,
        }
    }

    /// The offset in the file of the byte `within` the page.
    pub(crate) const fn offset_of(&self, within: u64) -> u64 {
        self.number.wrapping_mul(PAGE_BYTES).wrapping_add(within)
    }

    /// The counter that the instruction, which is on the page, reads for probed marks.
    pub(crate) fn counter_read_by(&self, decoded: &Decoded) -> Option<ReadCounter> {
        if self.code.counters.is_empty() {
            return None;
        }
        let at = relative_address(decoded)?;
        // As if the whole file were loaded as the instruction is.
        let offset = self.offset_of(decoded.at().page_offset());
        let start = decoded.at().0.wrapping_sub(offset);
        let is_read = |counter: &&CodeCounter| start.wrapping_add(counter.offset) == at.0;
        let mut read = self.code.counters.iter().filter(is_read).peekable();
        read.peek()?;
        let probes = read.map(|counter| Arc::clone(&counter.probe)).collect();
        (relative_use(decoded) == MemoryUse::Reads).then_some(ReadCounter { at, probes })
    }

    /// The probed instructions at the offset `at` in the file. An instruction that may leave a function is probed for its return, too.
    pub(crate) fn sites_at(&self, at: u64, may_leave: bool) -> impl Iterator<Item = &CodeSite> {
        let is_here =
            move |site: &&CodeSite| site.offset == at || (may_leave && site.is_in_function(at));
        self.code.sites.iter().filter(is_here)
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

#[cfg(test)]
mod tests {
    use address::Gva;
    use events::ProbeId;
    use introspect::insn::decode;

    use super::*;
    use crate::registry::Purpose;

    /// The page is the second of the file, the counter behind its end.
    const NUMBER: u64 = 1;
    const COUNTER: u64 = 0x5004;
    /// The program has loaded the page here.
    const LOADED: u64 = 0x7f00_0000_1000;

    fn page(counters: &[u64]) -> CodePage {
        let counter = |(number, offset): (usize, &u64)| {
            let id = ProbeId(number as u64);
            let probe = Probe::new(id, "x".into(), Purpose::Count, None, true);
            CodeCounter {
                offset: *offset,
                probe: Arc::new(probe),
            }
        };
        let code = PageCode {
            sites: Vec::new(),
            counters: counters.iter().enumerate().map(counter).collect(),
        };
        CodePage::new(FileId::default(), NUMBER, code, false)
    }

    /// The probes whose counter an instruction reads: `operation`, the distance to `counter`, and `operand`, at the offset 0x1234 of the file.
    fn read(page: &CodePage, operation: &[u8], counter: u64, operand: &[u8]) -> usize {
        let at = LOADED + 0x234;
        let end = 0x1234 + operation.len() as u64 + 4 + operand.len() as u64;
        let distance = i32::try_from(counter.wrapping_sub(end).cast_signed()).expect("near");
        let code = [operation, &distance.to_le_bytes()[..], operand].concat();
        let decoded = decode(&code, Gva(at)).expect("an instruction");
        let read = page.counter_read_by(&decoded);
        if let Some(read) = &read {
            assert_eq!(read.at, Gva(LOADED - 0x1000 + counter));
        }
        read.map_or(0, |read| read.probes.len())
    }

    #[test]
    fn instruction_that_reads_the_counter_of_a_mark_is_known() {
        let page = page(&[COUNTER, COUNTER + 2, COUNTER]);
        let compare: (&[u8], &[u8]) = (&[0x66, 0x83, 0x3d], &[0]);
        assert_eq!(read(&page, compare.0, COUNTER, compare.1), 2);
        assert_eq!(read(&page, compare.0, COUNTER + 2, compare.1), 1);
        assert_eq!(read(&page, compare.0, COUNTER + 4, compare.1), 0);
        // `movzx ecx, word [counter]`
        assert_eq!(read(&page, &[0x0f, 0xb7, 0x0d], COUNTER, &[]), 2);
    }

    #[test]
    fn instruction_that_writes_the_counter_or_takes_its_address_reads_it_not() {
        let page = page(&[COUNTER]);
        for (operation, operand) in [
            // `mov word [counter], 1`, `add word [counter], 1`, `lea rax, [counter]`, `cmp word fs:[counter], 0`
            (&[0x66, 0xc7, 0x05][..], &[1, 0][..]),
            (&[0x66, 0x83, 0x05], &[1]),
            (&[0x48, 0x8d, 0x05], &[]),
            (&[0x64, 0x66, 0x83, 0x3d], &[0]),
        ] {
            assert_eq!(
                read(&page, operation, COUNTER, operand),
                0,
                "{operation:x?}"
            );
        }
        let code = [0x90];
        let decoded = decode(&code, Gva(LOADED)).expect("an instruction");
        assert!(page.counter_read_by(&decoded).is_none());
    }
}
