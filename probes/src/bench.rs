//! What is looked at at every hit, for `benches/hits.rs` of the workspace alone: nothing else of this is seen from outside,
//! and nobody has it who does not ask for the feature `bench-internals`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use introspect::{Gpa, Gva};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::detour::{DetourError, Record, Ring};
use crate::guest::{GuestError, GuestMemory, KvmMemory};
use crate::hit::{Plant, Table};
use crate::plant::Spot;

/// Where plants are, from here on.
const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
const TEXT_GPA: Gpa = Gpa(0x100_0000);

/// What is planted, as a vCPU looks it up.
#[derive(Debug)]
pub struct Plants(Table);

impl Plants {
    /// So many, `step` bytes apart.
    #[must_use]
    pub fn new(count: u64, step: u64) -> Self {
        let mut table = Table::default();
        for offset in (0..count).map(|number| number * step) {
            let spot = Spot::contiguous(TEXT_GPA.wrapping_add(offset));
            table.put(Arc::new(Plant::new(TEXT.wrapping_add(offset), spot)));
        }
        Self(table)
    }

    /// Where the plant of this number is.
    #[must_use]
    pub fn at(number: u64, step: u64) -> Gva {
        TEXT.wrapping_add(number * step)
    }

    /// Whether there is one at `at`: first whether there may be.
    #[must_use]
    pub fn has(&self, at: Gva) -> bool {
        self.0.may_hold(at) && self.0.at(at).is_some()
    }
}

/// The ring of records, in memory as a guest's is.
#[derive(Debug)]
pub struct Records {
    ring: Ring,
    memory: Arc<dyn GuestMemory>,
    left: AtomicU64,
}

const RING_BYTES: usize = 2 << 20;

impl Records {
    /// One that is open, and empty.
    ///
    /// # Panics
    ///
    /// Without memory.
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

    /// Leaves so many records, as detours do; not more than there is room for.
    ///
    /// # Panics
    ///
    /// Without memory.
    pub fn leave(&self, count: u64) {
        let first = self.left.fetch_add(count, Ordering::Relaxed);
        for number in first..first + count {
            Record::leave(self.memory.as_ref(), number).expect("memory");
        }
    }

    /// Takes out what is there. Says how many there were.
    ///
    /// # Errors
    ///
    /// Without memory.
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
