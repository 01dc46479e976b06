//! Where an instruction lies in guest-physical memory.

use introspect::Gpa;

use super::page::PAGE_BYTES;

/// The first byte of an instruction, and where the guest goes on when it runs off the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The first byte.
    pub(crate) gpa: Gpa,
    /// The page that follows in the guest's own mapping, if one does. The kernel's text is contiguous; a module's is
    /// put together from any pages.
    pub(crate) beyond: Option<Gpa>,
}

impl Spot {
    /// In memory that is contiguous.
    pub(crate) fn contiguous(gpa: Gpa) -> Self {
        Self {
            gpa,
            beyond: gpa.page().checked_add(PAGE_BYTES as u64),
        }
    }

    /// Bytes to the end of its page.
    pub(crate) fn room(self) -> usize {
        PAGE_BYTES - usize::try_from(self.gpa.page_offset()).unwrap_or(0)
    }

    /// Whether `gpa` is one of the `len` bytes from here on.
    pub(crate) fn holds(self, gpa: Gpa, len: usize) -> bool {
        let here = len.min(self.room());
        let within = |start: Gpa, len: usize| {
            gpa.offset_from(start)
                .is_some_and(|offset| offset < len as u64)
        };
        let beyond = self.beyond.unwrap_or(self.gpa);
        within(self.gpa, here) || within(beyond, len - here)
    }

    /// The pages that `len` bytes from here on lie on.
    pub(super) fn pages(self, len: usize) -> impl Iterator<Item = Gpa> {
        let beyond = self.beyond.filter(|_| len > self.room());
        std::iter::once(self.gpa.page()).chain(beyond)
    }
}
