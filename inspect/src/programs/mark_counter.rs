//! The instructions of a program that read the counters of marks.
//!
//! A compiler gives such an instruction the distance from the next instruction to the counter. The search finds all four bytes of the code with such a
//! value, and then decodes the instructions around the four bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use address::{Gva, PAGE_BYTES};
use introspect::insn::{MemoryUse, decode, relative_address, relative_use};

use super::elf::Bytes;
use super::marks::MarkCounter;

/// A distance has four bytes. Behind it is an operand of the instruction, or nothing.
const DISTANCE_BYTES: usize = 4;
const OPERAND_BYTES: [u64; 4] = [0, 1, 2, MAX_OPERAND_BYTES];
const MAX_OPERAND_BYTES: u64 = 4;
/// In front of a distance: an instruction has at most 15 bytes.
const BYTES_BEFORE: Range<u64> = 2..12;
/// Of the next page: the rest of an instruction that begins at the end of a page.
const TAIL_BYTES: u64 = 14;
/// The most bytes of code that are searched: more than most programs with marks have, and less than an answer may read.
const MAX_CODE_BYTES: u64 = 16 << 20;
/// The most distances that are looked at: more than any program has.
const MAX_DISTANCES: u32 = 100_000;
/// The most pages with instructions, each counted for each counter.
const MAX_READERS: usize = 10_000;

/// The instructions that read counters, as far as they are known. The code is the same as long as the file has the same contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterReaders {
    /// The counters by the numbers of the pages with the instructions, see [`MarkCounter::offset`].
    pub pages: BTreeMap<u64, BTreeSet<u64>>,
    /// The number of pages of code that have not been in memory at any search.
    pub absent: u64,
    /// The number of pages of code beyond the limits of the search.
    pub left_out: u64,
    /// The counters that instructions are known to read.
    read: BTreeSet<u64>,
    /// The counters with addresses taken by instructions (`lea`): other instructions may read the counters.
    taken: BTreeSet<u64>,
    /// The pages that have been searched: the beginning of the code, and the number.
    searched: BTreeSet<(u64, u64)>,
}

impl CounterReaders {
    /// Whether instructions that are not found may read the counter of a mark.
    #[must_use]
    pub fn is_guarded(&self, counters: &[MarkCounter]) -> bool {
        let is_in = |known: &BTreeSet<u64>| counters.iter().any(|it| known.contains(&it.offset));
        !is_in(&self.read) || is_in(&self.taken)
    }

    /// Whether a further search may find more.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.absent > 0 && self.left_out == 0
    }
}

/// The pages of the file whose instructions read `counters`: the pages of `known`, and pages that have come into memory since.
pub(super) fn readers<'c>(
    file: &dyn Bytes,
    counters: impl Iterator<Item = &'c MarkCounter>,
    known: &CounterReaders,
) -> CounterReaders {
    let mut by_code = BTreeMap::<(u64, u64), BTreeSet<u64>>::new();
    for MarkCounter { offset, code } in counters {
        let counters = by_code.entry((code.start, code.end)).or_default();
        counters.insert(*offset);
    }
    let mut search = Search {
        pairs: known.pages.values().map(BTreeSet::len).sum(),
        found: CounterReaders {
            absent: 0,
            left_out: 0,
            ..known.clone()
        },
        distances_left: MAX_DISTANCES,
        bytes_left: MAX_CODE_BYTES,
    };
    for ((start, end), counters) in by_code {
        search.code(file, start..end, &counters);
    }
    search.found
}

/// A search for instructions: the results, and the remaining limits.
struct Search {
    found: CounterReaders,
    pairs: usize,
    distances_left: u32,
    bytes_left: u64,
}

impl Search {
    /// Searches the code at the offsets `code`, page by page.
    fn code(&mut self, file: &dyn Bytes, code: Range<u64>, counters: &BTreeSet<u64>) {
        let mut at = code.start;
        while at < code.end {
            let next = (at / PAGE_BYTES + 1).saturating_mul(PAGE_BYTES);
            let end = next.min(code.end);
            if self.bytes_left == 0 || self.is_over() || end == at {
                self.found.left_out += (code.end - at).div_ceil(PAGE_BYTES);
                return;
            }
            self.bytes_left = self.bytes_left.saturating_sub(end - at);
            let page = (code.start, at / PAGE_BYTES);
            if !self.found.searched.contains(&page) {
                // Each page with the rest of its last instruction: the pages may come in any order.
                let tail = end.saturating_add(TAIL_BYTES).min(code.end);
                let len = usize::try_from(tail - at).unwrap_or(0);
                match file.bytes(at, len) {
                    Some(bytes) => {
                        self.page(&bytes, at..end, counters);
                        match self.is_over() {
                            true => self.found.left_out += 1,
                            false => drop(self.found.searched.insert(page)),
                        }
                    }
                    None => self.found.absent += 1,
                }
            }
            at = end;
        }
    }

    const fn is_over(&self) -> bool {
        self.distances_left == 0 || self.pairs >= MAX_READERS
    }

    /// Searches for instructions that begin at the offsets `page` of the file; `bytes` begin there, too.
    fn page(&mut self, bytes: &[u8], page: Range<u64>, counters: &BTreeSet<u64>) {
        let start = page.start;
        for (distance, target) in distances(bytes, start, counters) {
            if self.is_over() {
                return;
            }
            self.distances_left -= 1;
            for operand in OPERAND_BYTES {
                let counter = target.wrapping_add(operand);
                if !counters.contains(&counter) {
                    continue;
                }
                let end = distance.saturating_add(DISTANCE_BYTES as u64 + operand);
                for before in BYTES_BEFORE {
                    let first = distance.checked_sub(before);
                    let Some(first) = first.filter(|first| page.contains(first)) else {
                        continue;
                    };
                    match used(bytes, start, first..end, counter) {
                        Some(MemoryUse::Reads) => self.note(first, counter),
                        Some(MemoryUse::TakesAddress) => {
                            self.found.taken.insert(counter);
                        }
                        _ => (),
                    }
                }
            }
        }
    }

    /// Notes an instruction at the offset `at` that reads the counter.
    fn note(&mut self, at: u64, counter: u64) {
        let counters = self.found.pages.entry(at / PAGE_BYTES).or_default();
        self.pairs += usize::from(counters.insert(counter));
        self.found.read.insert(counter);
    }
}

/// The places in `bytes`, which are at `start` of the file, of what may be distances to counters, with the places they lead to if they end an
/// instruction.
fn distances(
    bytes: &[u8],
    start: u64,
    counters: &BTreeSet<u64>,
) -> impl Iterator<Item = (u64, u64)> {
    let first = counters.first().copied().unwrap_or(u64::MAX);
    let last = counters.last().copied().unwrap_or(0);
    let near = first.saturating_sub(MAX_OPERAND_BYTES)..=last;
    let windows = bytes.windows(DISTANCE_BYTES).zip(start..);
    let targets = windows.map(|(bytes, at)| {
        let distance = bytes.try_into().map_or(0, i32::from_le_bytes);
        let behind = at.wrapping_add(DISTANCE_BYTES as u64);
        (at, behind.wrapping_add_signed(distance.into()))
    });
    targets.filter(move |(_, target)| near.contains(target))
}

/// What the instruction at the offsets `at` does with the counter; `None` if no such instruction is there. `bytes` are at `start` of the file.
fn used(bytes: &[u8], start: u64, at: Range<u64>, counter: u64) -> Option<MemoryUse> {
    let within = |at: u64| usize::try_from(at - start).ok();
    let code = bytes.get(within(at.start)?..within(at.end)?)?;
    let decoded = decode(code, Gva(at.start)).ok()?;
    let is_it = decoded.len() == code.len() && relative_address(&decoded) == Some(Gva(counter));
    is_it.then(|| relative_use(&decoded))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::programs::tests::At;

    /// Code of three pages at the offset 0x400 of a file, and a counter behind it.
    const CODE: Range<u64> = 0x400..0x3400;
    const COUNTER: u64 = 0x5004;

    fn counter() -> MarkCounter {
        let offset = COUNTER;
        MarkCounter { offset, code: CODE }
    }

    /// The file, with `instructions` at their offsets.
    fn file(instructions: &[(u64, &[u8])]) -> Vec<u8> {
        let mut file = vec![0x90; 0x3400];
        for (at, bytes) in instructions {
            file[usize::try_from(*at).expect("small")..][..bytes.len()].copy_from_slice(bytes);
        }
        file
    }

    fn found(file: Vec<u8>) -> CounterReaders {
        readers(&At(0, file), [counter()].iter(), &CounterReaders::default())
    }

    /// The pages with instructions that read the counter.
    fn pages(file: Vec<u8>) -> Vec<u64> {
        let found = found(file);
        assert!(
            found
                .pages
                .values()
                .all(|counters| *counters == BTreeSet::from([COUNTER]))
        );
        found.pages.into_keys().collect()
    }

    /// `operation` with the distance to the counter and `operand`, at `at`.
    fn reading(at: u64, operation: &[u8], operand: &[u8]) -> Vec<u8> {
        let len = operation.len() + DISTANCE_BYTES + operand.len();
        let distance = COUNTER.wrapping_sub(at + len as u64);
        let distance = i32::try_from(distance.cast_signed()).expect("near");
        [operation, &distance.to_le_bytes()[..], operand].concat()
    }

    #[test]
    fn page_of_an_instruction_that_reads_the_counter_is_found() {
        for (operation, operand) in [
            // `cmp word [counter], 0`, `movzx ecx, word [counter]`, `test byte [counter], 1`
            (&[0x66, 0x83, 0x3d][..], &[0][..]),
            (&[0x0f, 0xb7, 0x0d], &[]),
            (&[0xf6, 0x05], &[1]),
            // `cmp word [counter], 0x100`, `cmp dword [counter], 0x10000`
            (&[0x66, 0x81, 0x3d], &[0, 1]),
            (&[0x81, 0x3d], &[0, 0, 1, 0]),
        ] {
            let at = 0x1800;
            let code = reading(at, operation, operand);
            assert_eq!(pages(file(&[(at, &code)])), [1], "{code:x?}");
        }
        assert!(pages(file(&[])).is_empty());
    }

    #[test]
    fn instruction_on_two_pages_is_on_the_page_of_its_first_byte() {
        for at in 0x1ff9..0x2000 {
            let code = reading(at, &[0x66, 0x83, 0x3d], &[0]);
            let found = pages(file(&[(at, &code)]));
            // Without its prefix, the rest is an instruction, too.
            assert_eq!(found.first(), Some(&1), "{at:#x}");
            assert!(found.len() == 1 || at == 0x1fff, "{at:#x} {found:?}");
        }
    }

    #[test]
    fn counter_that_is_only_written_or_whose_address_is_taken_is_guarded() {
        let at = 0x1800;
        let read = reading(at, &[0x0f, 0xb7, 0x0d], &[]);
        // `mov word [counter], 1`, `lea rax, [counter]`
        let written = reading(at + 0x20, &[0x66, 0xc7, 0x05], &[1, 0]);
        let taken = reading(at + 0x40, &[0x48, 0x8d, 0x05], &[]);
        for (code, is_guarded) in [
            (&[(at, &read[..]), (at + 0x20, &written)][..], false),
            (&[(at + 0x20, &written)], true),
            (&[(at + 0x40, &taken)], true),
            (&[(at, &read), (at + 0x40, &taken)], true),
        ] {
            assert_eq!(
                found(file(code)).is_guarded(&[counter()]),
                is_guarded,
                "{code:x?}"
            );
        }
    }

    #[test]
    fn instruction_that_reads_the_next_counter_does_not_read_this_one() {
        let at = 0x1800;
        let next = COUNTER + 2;
        let code = reading(at, &[0x0f, 0xb7, 0x0d], &[]);
        let counters = [COUNTER, next].map(|offset| MarkCounter { offset, code: CODE });
        let found = readers(
            &At(0, file(&[(at, &code)])),
            counters.iter(),
            &CounterReaders::default(),
        );
        assert_eq!(found.pages[&1], BTreeSet::from([COUNTER]));
        assert!(found.is_guarded(&counters[1..]));
    }

    #[test]
    fn file_full_of_distances_is_searched_in_part() {
        let counters: Vec<_> = (0..1000)
            .map(|number| MarkCounter {
                offset: COUNTER + 2 * number,
                code: 0..MAX_CODE_BYTES,
            })
            .collect();
        // `mov eax, [counter]`, at every sixth byte.
        let len = usize::try_from(MAX_CODE_BYTES).expect("small");
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() + 6 <= len {
            let at = bytes.len() as u64;
            let distance = (COUNTER + 2 * (at % 1000)).wrapping_sub(at + 6);
            let distance = i32::try_from(distance.cast_signed()).expect("near");
            bytes.extend([0x8b, 0x05]);
            bytes.extend(distance.to_le_bytes());
        }
        let found = readers(&At(0, bytes), counters.iter(), &CounterReaders::default());
        let pairs: usize = found.pages.values().map(BTreeSet::len).sum();
        assert!(
            pairs <= MAX_READERS + 4 && found.left_out > 0,
            "{pairs} {}",
            found.left_out
        );
        assert!(!found.is_partial());
    }

    /// A file of which the bytes in a range are missing.
    struct Without(Vec<u8>, Range<u64>);

    impl Bytes for Without {
        fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
            let end = at + buf.len() as u64;
            (end <= self.1.start || at >= self.1.end).then_some(())?;
            At(0, self.0.clone()).read(at, buf)
        }
    }

    #[test]
    fn pages_that_come_later_in_any_order_are_searched_and_those_that_go_stay_known() {
        // The second instruction is on two pages.
        let instructions =
            [0x500, 0x1ffc, 0x2800].map(|at| (at, reading(at, &[0x0f, 0xb7, 0x0d], &[])));
        let instructions = instructions.each_ref().map(|(at, code)| (*at, &code[..]));
        let bytes = file(&instructions);
        let all = found(bytes.clone());
        assert_eq!(all.pages.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(!all.is_partial());
        for missing in [0x1000..0x2000, 0x2000..0x3000, 0x1000..0x3000] {
            let first = Without(bytes.clone(), missing.clone());
            let known = readers(&first, [counter()].iter(), &CounterReaders::default());
            assert!(known.is_partial() && known.pages.len() < 3, "{missing:x?}");
            // The last page has left memory meanwhile.
            let others = Without(bytes.clone(), 0x3300..0x3400);
            let known = readers(&others, [counter()].iter(), &known);
            assert_eq!(known, all, "{missing:x?}");
        }
    }

    #[test]
    fn code_that_is_not_in_memory_is_counted() {
        let code = reading(0x500, &[0x0f, 0xb7, 0x0d], &[]);
        let mut file = file(&[(0x500, &code)]);
        file.truncate(0x1001 + 14);
        let found = found(file);
        assert_eq!((found.absent, found.left_out), (3, 0));
        assert_eq!(found.pages.into_keys().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn code_at_the_end_of_all_offsets_is_searched() {
        let code = u64::MAX - 0xfff..u64::MAX;
        let counter = MarkCounter { offset: 7, code };
        let bytes = At(u64::MAX - 0xfff, vec![0; 0xfff]);
        let found = readers(&bytes, [counter].iter(), &CounterReaders::default());
        assert!(found.pages.is_empty());
    }

    #[test]
    fn segment_that_claims_all_addresses_is_searched_in_part() {
        let code = 0..u64::MAX;
        let counter = MarkCounter { offset: 1, code };
        let found = readers(
            &At(0, Vec::new()),
            [counter].iter(),
            &CounterReaders::default(),
        );
        assert_eq!(found.absent, MAX_CODE_BYTES / PAGE_BYTES);
        assert_eq!(found.absent + found.left_out, 1 << 52);
    }

    proptest! {
        #[test]
        fn reading_instruction_anywhere_is_found(at in CODE.start..CODE.end - 8) {
            let code = reading(at, &[0x66, 0x83, 0x3d], &[0]);
            let pages = pages(file(&[(at, &code)]));
            prop_assert!(pages.contains(&(at / PAGE_BYTES)), "{pages:?}");
        }

        #[test]
        fn no_code_panics(
            code in proptest::collection::vec(any::<u8>(), 0..5000),
            at in prop_oneof![0..0x2000_u64, u64::MAX - 0x3000..u64::MAX - 5000],
            counters in proptest::collection::vec(any::<u64>(), 1..4),
        ) {
            let end = at + code.len() as u64;
            let counters: Vec<_> = counters
                .into_iter()
                .map(|offset| MarkCounter { offset, code: at..end })
                .collect();
            let found = readers(&At(at, code), counters.iter(), &CounterReaders::default());
            prop_assert_eq!(found.absent, 0);
        }
    }
}
