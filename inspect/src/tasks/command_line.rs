//! The command line of a program, from the program's own memory.
//!
//! The program's page tables are in the kernel's direct map of physical memory. Tables of 4 and 5 levels are followed, with the tables
//! that map the kernel, too: with page-table isolation the kernel has a second set of tables for a program in user mode, which maps the
//! same pages of the program.

use address::{Gpa, Gva};
use introspect::btf::Slot;
use introspect::{Btf, PagingState, PhysMemory, Unreadable, read_virt};

use crate::KernelView;
use crate::reads::{Reads, ReadsError};
use crate::structs::{NoType, StructType};

/// The most bytes of a command line that are read.
const MAX_BYTES: u64 = 4096;
const PAGE_BYTES: u64 = 4096;
/// The start of the direct map in a kernel that does not move it, by the number of levels.
const FIXED_MAP: [u64; 2] = [0xffff_8880_0000_0000, 0xff11_0000_0000_0000];

/// The members of `mm_struct`.
#[derive(Debug)]
pub(super) struct ProgramLayout {
    tables: Slot,
    start: Slot,
    end: Slot,
}

/// The kernel's direct map of physical memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectMap {
    start: Gva,
    five_levels: bool,
}

/// Guest-physical memory, through the direct map.
struct Mapped<'r> {
    reads: &'r Reads<'r>,
    map: DirectMap,
}

impl DirectMap {
    /// Where the kernel says. A kernel that moves the map has the address in `page_offset_base`.
    pub(super) fn find(view: &KernelView<'_>) -> Option<Self> {
        let five_levels = match view.address_of("__pgtable_l5_enabled") {
            Some(at) => view.u32(at).ok()? != 0,
            None => false,
        };
        let start = match view.address_of("page_offset_base") {
            Some(at) => view.pointer(at).ok()?,
            None => Gva(FIXED_MAP[usize::from(five_levels)]),
        };
        Some(Self { start, five_levels })
    }
}

impl PhysMemory for Mapped<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let len = buf.len();
        let at = self.map.start.wrapping_add(gpa.0);
        let read = self.reads.fill(at, buf);
        read.map_err(|_| Unreadable { gpa, len })
    }
}

impl ProgramLayout {
    pub(super) fn new(btf: &Btf) -> Result<Self, NoType> {
        let memory = StructType::named(btf, "mm_struct")?;
        Ok(Self {
            tables: memory.slot("pgd")?,
            start: memory.slot("arg_start")?,
            end: memory.slot("arg_end")?,
        })
    }

    /// The words of the command line of the program with the `mm_struct` at `memory`; empty if its page is not in memory.
    pub(super) fn words(
        &self,
        reads: &Reads<'_>,
        map: DirectMap,
        memory: Gva,
    ) -> Result<Vec<String>, ReadsError> {
        let [tables, start, end] =
            [self.tables, self.start, self.end].map(|slot| reads.number(memory, slot));
        let (tables, start, end) = (tables?, start?, end?);
        let root = tables.wrapping_sub(map.start.0);
        let paging = match map.five_levels {
            true => PagingState::five_level(root),
            false => PagingState::four_level(root),
        };
        let mapped = Mapped { reads, map };
        let len = end.saturating_sub(start).min(MAX_BYTES);
        let mut text = Vec::new();
        while (text.len() as u64) < len {
            let at = Gva(start).wrapping_add(text.len() as u64);
            let here = (PAGE_BYTES - at.page_offset()).min(len - text.len() as u64);
            let mut page = vec![0; usize::try_from(here).unwrap_or(0)];
            if read_virt(&mapped, &paging, at, &mut page).is_err() {
                break;
            }
            text.extend(page);
        }
        Ok(words(&text))
    }
}

/// The words before each zero, without the empty words at the end.
fn words(text: &[u8]) -> Vec<String> {
    let used = text
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    if used == 0 {
        return Vec::new();
    }
    let words = text[..used].split(|byte| *byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_at_zeros() {
        assert_eq!(words(b"sh\0-c\0a b\0\0\0"), ["sh", "-c", "a b"]);
        assert_eq!(words(b"a\0\0b\0"), ["a", "", "b"]);
        assert_eq!(words(b"cut"), ["cut"]);
        assert!(words(b"\0\0").is_empty() && words(b"").is_empty());
    }
}
