//! The levels of the paging structures, and the sizes of their pages.

use std::fmt;

/// A level of the paging structures, from the root down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Level 5, the root where LA57 is on.
    Pml5,
    /// Level 4.
    Pml4,
    /// Level 3; may map 1 GiB pages.
    Pdpt,
    /// Level 2; may map 2 MiB pages.
    Pd,
    /// Level 1; maps 4 KiB pages.
    Pt,
}

impl Level {
    /// The lowest of the nine address bits selecting an entry at the level.
    pub(super) const fn shift(self) -> u32 {
        match self {
            Self::Pml5 => 48,
            Self::Pml4 => 39,
            Self::Pdpt => 30,
            Self::Pd => 21,
            Self::Pt => 12,
        }
    }

    /// The next level; `None` for the lowest.
    pub(super) const fn below(self) -> Option<Self> {
        match self {
            Self::Pml5 => Some(Self::Pml4),
            Self::Pml4 => Some(Self::Pdpt),
            Self::Pdpt => Some(Self::Pd),
            Self::Pd => Some(Self::Pt),
            Self::Pt => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pml5 => "PML5",
            Self::Pml4 => "PML4",
            Self::Pdpt => "PDPT",
            Self::Pd => "PD",
            Self::Pt => "PT",
        })
    }
}

/// The size of a leaf entry's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// 4 KiB.
    Size4K,
    /// 2 MiB.
    Size2M,
    /// 1 GiB.
    Size1G,
}

impl PageSize {
    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Size4K => 1 << 12,
            Self::Size2M => 1 << 21,
            Self::Size1G => 1 << 30,
        }
    }
}
