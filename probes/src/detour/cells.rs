//! Words in which detours count: memory that the guest's kernel can write.

use std::sync::Arc;

use introspect::{Gpa, Gva};

use super::DetourError;
use crate::guest::{GuestError, GuestMemory};

/// What somebody's words begin at a multiple of, so that none lies on two cache lines.
const ALIGNMENT: u64 = 16;

/// Words in which a detour counts. Readable from any thread; what the guest's kernel makes of them is its own affair.
#[derive(Clone)]
pub(crate) struct Words {
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

    /// What the first one says: how often its detour has counted.
    pub(crate) fn count(&self) -> u64 {
        self.memory.read_u64(self.gpa).unwrap_or(0)
    }

    /// What they say.
    pub(crate) fn read(&self) -> Vec<u64> {
        let words = 0..self.len;
        words
            .map(|index| self.memory.read_u64(self.at(index)).unwrap_or(0))
            .collect()
    }

    /// Makes them say this. No vCPU runs.
    ///
    /// # Errors
    ///
    /// When they cannot be written.
    pub(crate) fn write(&self, words: &[u64]) -> Result<(), GuestError> {
        for (index, word) in words.iter().take(self.len).enumerate() {
            self.memory.write(self.at(index), &word.to_le_bytes())?;
        }
        Ok(())
    }
}

/// The memory that they lie in.
#[derive(Clone)]
pub(super) struct Cells {
    pub(super) memory: Arc<dyn GuestMemory>,
    /// As the guest's kernel sees it.
    pub(super) base: Gva,
    pub(super) gpa: Gpa,
    pub(super) bytes: u64,
    /// How much has been given out.
    pub(super) given: u64,
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cells").field(&self.base).finish()
    }
}

impl Cells {
    /// So many words that nobody has had: where the guest's kernel finds them, and how they are read. They are given
    /// for good when [`keep`](Self::keep) is called.
    pub(super) fn next(&self, len: usize) -> Result<(Gva, Words), DetourError> {
        let end = self.given + 8 * len as u64;
        if end > self.bytes {
            return Err(DetourError::NoMoreDetours);
        }
        let words = Words {
            memory: Arc::clone(&self.memory),
            gpa: self.gpa.wrapping_add(self.given),
            len,
        };
        Ok((self.base.wrapping_add(self.given), words))
    }

    /// The words that were given last are somebody's now.
    pub(super) fn keep(&mut self, words: &Words) {
        let end = self.given + 8 * words.len as u64;
        self.given = end.next_multiple_of(ALIGNMENT);
    }
}
