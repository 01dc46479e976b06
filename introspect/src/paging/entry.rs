//! A paging-structure entry.

use address::Gpa;

use super::level::{Level, PageSize};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const PAGE_SIZE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const KEY_SHIFT: u32 = 59;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// In a large page's entry bit 12 is PAT; the rest of the address below the page's size is
/// reserved.
const LARGE_PAT: u64 = 1 << 12;

/// An entry as in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry(pub(super) u64);

impl Entry {
    pub(super) const fn present(self) -> bool {
        self.0 & PRESENT != 0
    }

    pub(super) const fn writable(self) -> bool {
        self.0 & WRITABLE != 0
    }

    pub(super) const fn user(self) -> bool {
        self.0 & USER != 0
    }

    pub(super) const fn accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    pub(super) const fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    pub(super) const fn global(self) -> bool {
        self.0 & GLOBAL != 0
    }

    /// The protection key of a leaf.
    pub(super) const fn key(self) -> u8 {
        // Four bits.
        (self.0 >> KEY_SHIFT & 0xf) as u8
    }

    pub(super) const fn no_execute(self) -> bool {
        self.0 & NO_EXECUTE != 0
    }

    /// The next table's address.
    pub(super) const fn table(self) -> Gpa {
        Gpa(self.0 & ADDRESS)
    }

    /// The page's address, for a leaf mapping `size`.
    pub(super) const fn frame(self, size: PageSize) -> Gpa {
        Gpa(self.0 & ADDRESS & !(size.bytes() - 1))
    }

    /// The size of the page mapped by the entry at `level`, or `None` if the entry points to
    /// another table.
    pub(super) const fn leaf(self, level: Level) -> Option<PageSize> {
        match level {
            Level::Pt => Some(PageSize::Size4K),
            Level::Pd if self.0 & PAGE_SIZE != 0 => Some(PageSize::Size2M),
            Level::Pdpt if self.0 & PAGE_SIZE != 0 => Some(PageSize::Size1G),
            _ => None,
        }
    }

    /// Whether a reserved bit is set, which makes the processor raise a page fault. The processor's
    /// physical address width is not known here: the architecture's widest, 52 bits, is assumed.
    pub(super) const fn reserved(self, level: Level, no_execute_enabled: bool) -> bool {
        if self.no_execute() && !no_execute_enabled {
            return true;
        }
        match level {
            Level::Pml5 | Level::Pml4 => self.0 & PAGE_SIZE != 0,
            _ => match self.leaf(level) {
                Some(PageSize::Size4K) | None => false,
                Some(size) => self.0 & (size.bytes() - 1) & ADDRESS & !LARGE_PAT != 0,
            },
        }
    }
}
