//! The look-ups of every hit, for `benches/hits.rs` of the workspace alone. Only builds with the feature `bench-internals` have the module,
//! and no other code uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use address::{Gpa, Gva};
use detour::{DetourError, Record, Ring};
use text::{GuestError, GuestMemory, KvmMemory, Spot};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::plant::Plant;
use crate::plant_table::Table;

/// The address of the first plant.
const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
const TEXT_GPA: Gpa = Gpa(0x100_0000);

/// The table of plants, for look-ups by a vCPU.
#[derive(Debug)]
pub struct Plants(Table);

impl Plants {
    /// A table with `count` plants, `step` bytes apart.
    #[must_use]
    pub fn new(count: u64, step: u64) -> Self {
        let mut table = Table::default();
        for offset in (0..count).map(|number| number * step) {
            let spot = Spot::contiguous(TEXT_GPA.wrapping_add(offset));
            table.put(Arc::new(Plant::new(TEXT.wrapping_add(offset), spot)));
        }
        Self(table)
    }

    /// The address of the plant with the given number.
    #[must_use]
    pub fn at(number: u64, step: u64) -> Gva {
        TEXT.wrapping_add(number * step)
    }

    /// Whether the table has a plant at `at`. The quick check of the offset comes first.
    #[must_use]
    pub fn has(&self, at: Gva) -> bool {
        self.0.may_hold(at) && self.0.at(at).is_some()
    }
}

/// The ring of records, in memory like a guest's.
#[derive(Debug)]
pub struct Records {
    ring: Ring,
    memory: Arc<dyn GuestMemory>,
    left: AtomicU64,
}

const RING_BYTES: usize = 2 << 20;

impl Records {
    /// An open and empty ring.
    ///
    /// # Panics
    ///
    /// If memory cannot be allocated.
    #[must_use]
    pub fn new() -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RING_BYTES)]);
        let memory: Arc<dyn GuestMemory> = Arc::new(KvmMemory(memory.expect("memory")));
        let ring: Result<Ring, DetourError> = Ring::new(Arc::clone(&memory), Gpa(0), TEXT);
        let ring = ring.expect("the ring fits");
        ring.open().expect("memory");
        Self {
            ring,
            memory,
            left: AtomicU64::new(0),
        }
    }

    /// Writes `count` records, as detours do; `count` must not exceed the room in the ring.
    ///
    /// # Panics
    ///
    /// If memory cannot be written.
    pub fn leave(&self, count: u64) {
        let first = self.left.fetch_add(count, Ordering::Relaxed);
        for number in first..first + count {
            Record::leave(self.memory.as_ref(), number).expect("memory");
        }
    }

    /// Takes the records out. Returns their number.
    ///
    /// # Errors
    ///
    /// If memory cannot be used.
    pub fn take_out(&self) -> Result<u64, GuestError> {
        let mut taken = 0;
        self.ring.take_out(|record| {
            std::hint::black_box(&record);
            taken += 1;
        })?;
        Ok(taken)
    }
}

impl Default for Records {
    fn default() -> Self {
        Self::new()
    }
}
