//! A range of guest-physical pages.

use address::{Gpa, PAGE_BYTES};

/// Guest-physical pages, from `start` up to but not including `end`; both are multiples of 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageRange {
    /// First byte of the first page.
    pub start: Gpa,
    /// First byte behind the last page.
    pub end: Gpa,
}

impl PageRange {
    /// The pages that hold `start..end`.
    #[must_use]
    pub fn covering(start: Gpa, end: Gpa) -> Self {
        Self {
            start: Gpa(start.0 & !(PAGE_BYTES - 1)),
            end: Gpa(end.0.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)),
        }
    }
}
