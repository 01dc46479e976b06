//! A range of guest-physical pages.

use vm_memory::GuestAddress;

/// A page, in bytes.
const PAGE_BYTES: u64 = 4096;

/// Guest-physical pages, from `start` up to but not including `end`; both are multiples of 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageRange {
    /// First byte of the first page.
    pub start: GuestAddress,
    /// First byte behind the last page.
    pub end: GuestAddress,
}

impl PageRange {
    /// The pages that hold `start..end`.
    #[must_use]
    pub fn covering(start: GuestAddress, end: GuestAddress) -> Self {
        Self {
            start: GuestAddress(start.0 & !(PAGE_BYTES - 1)),
            end: GuestAddress(end.0.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)),
        }
    }
}
