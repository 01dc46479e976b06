//! The location of an instruction in guest-physical memory.

use address::{Gpa, PAGE_BYTES, PAGE_LEN};

/// The first byte of an instruction, and the page on which the instruction continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The first byte.
    pub gpa: Gpa,
    /// The next page in the guest's own mapping, if any. The kernel's text is physically contiguous; a module's text consists of any pages.
    pub beyond: Option<Gpa>,
}

impl Spot {
    /// A location in contiguous memory.
    #[must_use]
    pub fn contiguous(gpa: Gpa) -> Self {
        Self {
            gpa,
            beyond: gpa.page().checked_add(PAGE_BYTES),
        }
    }

    /// The number of bytes up to the end of the page.
    #[must_use]
    pub fn room(self) -> usize {
        PAGE_LEN - usize::try_from(self.gpa.page_offset()).unwrap_or(0)
    }

    /// Whether `gpa` is one of the `len` bytes from the first byte on.
    #[must_use]
    #[inline]
    pub fn holds(self, gpa: Gpa, len: usize) -> bool {
        let here = len.min(self.room());
        let within = |start: Gpa, len: usize| {
            gpa.offset_from(start)
                .is_some_and(|offset| offset < len as u64)
        };
        let beyond = self.beyond.unwrap_or(self.gpa);
        within(self.gpa, here) || within(beyond, len - here)
    }

    /// The pages of the `len` bytes from the first byte on.
    pub fn pages(self, len: usize) -> impl Iterator<Item = Gpa> {
        let beyond = self.beyond.filter(|_| len > self.room());
        std::iter::once(self.gpa.page()).chain(beyond)
    }
}
