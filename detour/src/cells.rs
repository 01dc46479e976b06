//! Counters of detours: memory that the guest's kernel can write.

use std::sync::Arc;

use address::{Gpa, Gva};
use text::{GuestError, GuestMemory};

use super::DetourError;

/// Each part's counters begin at a multiple of this number of bytes, so that no counter lies on two cache lines.
const ALIGNMENT: u64 = 16;

/// The counters of a detour part. Any thread may read them; the guest's kernel may corrupt the values.
#[derive(Clone)]
pub struct Words {
    memory: Arc<dyn GuestMemory>,
    gpa: Gpa,
    len: usize,
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Words")
            .field(&self.gpa)
            .field(&self.len)
            .finish()
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && self.gpa == other.gpa
    }
}

impl Words {
    fn at(&self, index: usize) -> Gpa {
        self.gpa.wrapping_add(8 * index as u64)
    }

    /// The first counter of `memory`.
    #[cfg(any(test, feature = "testing"))]
    pub fn of(memory: Arc<dyn GuestMemory>) -> Self {
        Self {
            memory,
            gpa: Gpa(0),
            len: 1,
        }
    }

    /// The first counter: the number of hits counted by its detour.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.memory.read_u64(self.gpa).unwrap_or(0)
    }

    /// The values of all counters.
    #[must_use]
    pub fn read(&self) -> Vec<u64> {
        let words = 0..self.len;
        words
            .map(|index| self.memory.read_u64(self.at(index)).unwrap_or(0))
            .collect()
    }

    /// Sets the counters to `words`. No vCPU runs.
    ///
    /// # Errors
    ///
    /// If the memory cannot be written.
    pub fn write(&self, words: &[u64]) -> Result<(), GuestError> {
        for (index, word) in words.iter().take(self.len).enumerate() {
            self.memory.write(self.at(index), &word.to_le_bytes())?;
        }
        Ok(())
    }
}

/// The free part of the last page of counters. Counters on full pages are known to their detour parts only.
#[derive(Clone, Default)]
pub(super) struct Cells(Option<Page>);

#[derive(Clone)]
struct Page {
    memory: Arc<dyn GuestMemory>,
    /// The address in the guest's kernel.
    base: Gva,
    gpa: Gpa,
    bytes: u64,
    /// The number of bytes allocated.
    given: u64,
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let base = self.0.as_ref().map(|page| page.base);
        f.debug_tuple("Cells").field(&base).finish()
    }
}

impl Cells {
    /// An allocator on a page of zeros.
    pub(super) fn on(memory: Arc<dyn GuestMemory>, base: Gva, gpa: Gpa, bytes: u64) -> Self {
        Self(Some(Page {
            memory,
            base,
            gpa,
            bytes,
            given: 0,
        }))
    }

    /// Whether `len` counters are free.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let page = self.0.as_ref();
        page.is_some_and(|page| page.given + 8 * len as u64 <= page.bytes)
    }

    /// The next `len` unused counters: their address in the guest's kernel, and a handle to read them. [`keep`](Self::keep) makes
    /// the allocation permanent.
    pub(super) fn next(&self, len: usize) -> Result<(Gva, Words), DetourError> {
        let page = self.0.as_ref().filter(|_| self.has_room(len));
        let page = page.ok_or(DetourError::Full)?;
        let words = Words {
            memory: Arc::clone(&page.memory),
            gpa: page.gpa.wrapping_add(page.given),
            len,
        };
        Ok((page.base.wrapping_add(page.given), words))
    }

    /// Makes the last allocation permanent: `words` are in use.
    pub(super) fn keep(&mut self, words: &Words) {
        if let Some(page) = &mut self.0 {
            let end = page.given + 8 * words.len as u64;
            page.given = end.next_multiple_of(ALIGNMENT);
        }
    }
}
