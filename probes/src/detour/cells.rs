//! Where detours count: memory that the guest's kernel can write.

use std::sync::Arc;

use introspect::{Gpa, Gva};

use super::DetourError;
use crate::guest::GuestMemory;

/// From one cell to the next.
pub(super) const CELL_BYTES: u64 = 16;

/// Where a detour counts. Readable from any thread; what the guest's kernel makes of it is its own affair.
#[derive(Clone)]
pub(crate) struct Cell {
    memory: Arc<dyn GuestMemory>,
    gpa: Gpa,
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cell").field(&self.gpa).finish()
    }
}

impl PartialEq for Cell {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && self.gpa == other.gpa
    }
}

impl Cell {
    /// How often its detour has been taken.
    pub(crate) fn count(&self) -> u64 {
        self.memory.read_u64(self.gpa).unwrap_or(0)
    }
}

/// The memory that cells lie in.
#[derive(Clone)]
pub(super) struct Cells {
    pub(super) memory: Arc<dyn GuestMemory>,
    /// As the guest's kernel sees it.
    pub(super) base: Gva,
    pub(super) gpa: Gpa,
    pub(super) bytes: u64,
    /// How many have been given out.
    pub(super) given: u64,
}

impl std::fmt::Debug for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cells").field(&self.base).finish()
    }
}

impl Cells {
    /// A cell that nobody has had: where the guest's kernel finds it, and how it is read.
    pub(super) fn give(&mut self) -> Result<(Gva, Cell), DetourError> {
        let offset = self.given * CELL_BYTES;
        if offset + CELL_BYTES > self.bytes {
            return Err(DetourError::NoMoreDetours);
        }
        self.given += 1;
        let cell = Cell {
            memory: Arc::clone(&self.memory),
            gpa: self.gpa.wrapping_add(offset),
        };
        Ok((self.base.wrapping_add(offset), cell))
    }
}
