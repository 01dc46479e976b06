//! The ring of records, for the fuzz target `ring` alone.

use std::sync::Arc;

use address::{Gpa, Gva};
use text::{GuestError, GuestMemory};

use crate::ring;

/// The size of the guest memory that holds a ring.
pub const RING_BYTES: usize = 2 << 20;
/// The maximum number of records that one call takes out.
pub const SLOTS: u64 = ring::SLOTS;
/// The offset of the number of taken slots.
pub const HEAD: u64 = ring::HEAD;
/// The offset of the first slot, which begins with the number of a detour part.
pub const FIRST_SLOT: u64 = ring::FIRST;
/// The size of a slot.
pub const SLOT_BYTES: u64 = ring::SLOT_BYTES;

/// The ring at guest-physical 0, and its reader.
#[derive(Debug)]
pub struct Ring(ring::Ring);

impl Ring {
    /// An open ring in `memory`, which has [`RING_BYTES`] zeros.
    ///
    /// # Panics
    ///
    /// If the memory cannot be written.
    #[must_use]
    pub fn new(memory: Arc<dyn GuestMemory>) -> Self {
        let ring = ring::Ring::new(memory, Gpa(0), Gva(0xffff_ffff_8100_0000));
        let ring = ring.expect("the ring fits");
        ring.open().expect("the memory can be written");
        Self(ring)
    }

    /// Takes the records out. Returns the numbers of their detour parts.
    ///
    /// # Errors
    ///
    /// If the ring's memory cannot be used.
    pub fn take_out(&self) -> Result<Vec<u32>, GuestError> {
        let mut parts = Vec::new();
        self.0.take_out(|record| parts.push(record.part_number))?;
        Ok(parts)
    }

    /// Allows and forbids records of calls that return to `site`.
    ///
    /// # Errors
    ///
    /// If the ring's memory cannot be used.
    pub fn change_site(&self, site: Gva, allowed: bool) -> Result<(), GuestError> {
        match allowed {
            true => self.0.allow(site),
            false => self.0.forbid(site),
        }
    }

    /// Whether a slot is taken and not taken out.
    #[must_use]
    pub fn has_records(&self) -> bool {
        self.0.has_records()
    }
}
