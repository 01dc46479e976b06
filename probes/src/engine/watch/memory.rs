//! Guest memory during one emulated instruction: notes the writes to watched bytes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use introspect::{PhysMemory, Unreadable};
use text::{GuestMemory, Unwritable};

use super::table::{Watch, WatchKey, WatchTable};

/// The cause of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The instruction at the address.
    Instruction(Gva),
    /// The processor: it delivers an exception or interrupt in front of the instruction at `at`, and writes the frame.
    Delivery { vector: u8, at: Gva },
}

/// A write to watched bytes.
#[derive(Clone, Debug)]
pub(crate) struct SeenWrite {
    pub(crate) watch: Watch,
    /// The watched bytes before and after, as numbers.
    pub(crate) old: u64,
    pub(crate) new: u64,
}

/// The writes of an instruction: one for each watchpoint with a written byte.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    writes: BTreeMap<WatchKey, SeenWrite>,
    /// The protected pages with a written byte.
    pages: BTreeSet<Gpa>,
}

impl Seen {
    /// The writes, in the order of the table.
    pub(crate) fn writes(&self) -> impl Iterator<Item = &SeenWrite> {
        self.writes.values()
    }

    /// The watchpoints on the written pages that have no written byte.
    pub(crate) fn beside<'t>(&self, table: &'t WatchTable) -> impl Iterator<Item = &'t Watch> {
        let on_pages = self.pages.iter().flat_map(|page| table.on_page(*page));
        on_pages.filter(|watch| !self.writes.contains_key(&watch.key()))
    }

    /// Adds a write. The emulator may write the bytes of an instruction in parts.
    fn add(&mut self, write: SeenWrite) {
        match self.writes.entry(write.watch.key()) {
            Entry::Vacant(first) => {
                first.insert(write);
            }
            Entry::Occupied(mut earlier) => earlier.get_mut().new = write.new,
        }
    }
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
            for (watch, old) in before {
                seen.add(SeenWrite {
                    watch: watch.clone(),
                    old,
                    new: watch.value(&self.memory),
                });
            }
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

    fn on_read(&self, gpa: Gpa, bytes: &mut [u8]) {
        self.memory.on_read(gpa, bytes);
    }

    fn ranges(&self) -> Vec<Range<Gpa>> {
        self.memory.ranges()
    }

    fn is_writable(&self, gpa: Gpa) -> bool {
        self.memory.is_writable(gpa)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use text::testing::FakeMemory;

    use super::*;

    #[test]
    fn parts_of_a_write_are_one_write() {
        let table = WatchTable::at([(0x1004, 8), (0x1000, 8), (0x1010, 8), (0x2000, 8)]);
        let memory = FakeMemory::new(vec![0; 0x3000]);
        let watched = WatchedMemory::new(&memory, &table);
        for part in 0..4 {
            let gpa = Gpa(0x1000 + 4 * part);
            watched.write(gpa, &[1; 4]).expect("memory");
        }
        let seen = watched.into_seen();
        let ones = u64::from_le_bytes([1; 8]);
        let writes = seen
            .writes()
            .map(|write| (write.watch.gpa.0, write.old, write.new));
        assert_eq!(
            writes.collect::<Vec<_>>(),
            [(0x1000, 0, ones), (0x1004, 0, ones)]
        );
        let beside = seen.beside(&table).map(|watch| watch.gpa.0);
        assert_eq!(beside.collect::<Vec<_>>(), [0x1010]);
    }

    /// Memory that counts reads.
    struct Counted(FakeMemory, AtomicUsize);

    impl PhysMemory for Counted {
        fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.read(gpa, buf)
        }
    }

    impl GuestMemory for Counted {
        fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unwritable> {
            self.0.write(gpa, bytes)
        }

        fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable> {
            self.0.compare_exchange(gpa, old, new)
        }

        fn ranges(&self) -> Vec<Range<Gpa>> {
            self.0.ranges()
        }
    }

    #[test]
    fn write_reads_each_watchpoint_of_its_bytes_twice_and_no_other() {
        const MANY: usize = 1000;
        let on_page = std::iter::repeat_n((0x1000, 8), MANY).chain([(0x1008, 8), (0x1800, 4)]);
        let table = WatchTable::at(on_page);
        let memory = Counted(FakeMemory::new(vec![0; 0x2000]), AtomicUsize::new(0));
        let watched = WatchedMemory::new(&memory, &table);
        watched.write(Gpa(0x1000), &[1; 8]).expect("memory");
        let seen = watched.into_seen();
        assert_eq!(seen.writes().count(), MANY);
        assert_eq!(seen.beside(&table).count(), 2);
        assert_eq!(memory.1.into_inner(), 2 * MANY);
    }
}
