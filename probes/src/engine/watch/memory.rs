//! Guest memory during one emulated instruction: notes the writes to watched bytes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use address::Gpa;
use introspect::{PhysMemory, Unreadable};
use text::{GuestMemory, Unwritable};

use super::table::{Watch, WatchTable};

/// A write to watched bytes.
#[derive(Clone, Debug)]
pub(crate) struct SeenWrite {
    pub(crate) watch: Watch,
    /// The watched bytes before and after, as numbers.
    pub(crate) old: u64,
    pub(crate) new: u64,
}

/// The writes of an instruction.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) writes: Vec<SeenWrite>,
    /// The protected pages with a written byte.
    pub(crate) pages: BTreeSet<Gpa>,
}

/// Guest memory with watched bytes. The caller holds the lock of the watchpoints: no other thread writes to a protected page.
pub(crate) struct WatchedMemory<'m> {
    memory: &'m dyn GuestMemory,
    table: &'m WatchTable,
    seen: Mutex<Seen>,
}

impl<'m> WatchedMemory<'m> {
    pub(crate) fn new(memory: &'m dyn GuestMemory, table: &'m WatchTable) -> Self {
        Self {
            memory,
            table,
            seen: Mutex::default(),
        }
    }

    pub(crate) fn into_seen(self) -> Seen {
        self.seen
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a write of `len` bytes at `gpa` by `write`, which returns whether bytes were written.
    fn noting<E>(
        &self,
        gpa: Gpa,
        len: usize,
        write: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let touched = self.table.touched(gpa, len);
        let before: Vec<(&Watch, u64)> = touched
            .map(|watch| (watch, watch.value(&self.memory)))
            .collect();
        let written = write()?;
        if written {
            let mut seen = self.seen();
            // The emulator writes each page by itself.
            seen.pages
                .extend(self.table.protects(gpa).then(|| gpa.page()));
            seen.writes
                .extend(before.into_iter().map(|(watch, old)| SeenWrite {
                    watch: watch.clone(),
                    old,
                    new: watch.value(&self.memory),
                }));
        }
        Ok(written)
    }
}

impl PhysMemory for WatchedMemory<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.memory.read(gpa, buf)
    }

    fn read_u64(&self, gpa: Gpa) -> Result<u64, Unreadable> {
        self.memory.read_u64(gpa)
    }
}

impl GuestMemory for WatchedMemory<'_> {
    fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unwritable> {
        let write = || self.memory.write(gpa, bytes).map(|()| true);
        self.noting(gpa, bytes.len(), write).map(drop)
    }

    fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable> {
        let exchange = || self.memory.compare_exchange(gpa, old, new);
        self.noting(gpa, new.len(), exchange)
    }

    fn ranges(&self) -> Vec<Range<Gpa>> {
        self.memory.ranges()
    }
}
