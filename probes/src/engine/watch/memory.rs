//! Guest memory during one emulated instruction: notes the accesses to watched bytes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use events::ProbeId;
use introspect::{PhysMemory, Unreadable};
use text::{GuestMemory, Unwritable};

use super::table::{Watch, WatchKey, WatchTable};
use crate::registry::Probe;

/// The cause of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The instruction at the address.
    Instruction(Gva),
    /// The processor: it delivers an exception or interrupt in front of the instruction at `at`, and writes the frame.
    Delivery { vector: u8, at: Gva },
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Read,
    Write,
}

/// An access to watched bytes that is a hit.
#[derive(Clone, Debug)]
pub(crate) struct SeenAccess {
    pub(crate) watch: Watch,
    pub(crate) kind: AccessKind,
    /// The watched bytes before and after, as numbers; equal at a read.
    pub(crate) old: u64,
    pub(crate) new: u64,
}

impl SeenAccess {
    pub(crate) fn read(watch: &Watch, value: u64) -> Self {
        Self {
            watch: watch.clone(),
            kind: AccessKind::Read,
            old: value,
            new: value,
        }
    }

    pub(crate) fn write(watch: &Watch, old: u64, new: u64) -> Self {
        Self {
            watch: watch.clone(),
            kind: AccessKind::Write,
            old,
            new,
        }
    }
}

/// The accesses of an instruction: one for each word with an accessed byte. An instruction that reads and writes a word has written.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    accesses: BTreeMap<WatchKey, SeenAccess>,
    /// The protected pages at which the instruction has exited, or would have.
    pages: BTreeSet<Gpa>,
}

impl Seen {
    /// The accesses, in the order of the table.
    pub(crate) fn accesses(&self) -> impl Iterator<Item = &SeenAccess> {
        self.accesses.values()
    }

    /// The protected pages at which the instruction has exited, or would have.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Gpa> {
        self.pages.iter().copied()
    }

    /// Forgets the reads of words whose writes are hits, too: the instruction is about to write to them.
    pub(crate) fn leave_reads_to_writes(&mut self) {
        self.accesses
            .retain(|_, access| !access.watch.access.has_writes());
    }

    /// Forgets the reads.
    fn without_reads(mut self) -> Self {
        self.accesses
            .retain(|_, access| access.kind == AccessKind::Write);
        self
    }

    /// The probes with words on the pages, none of which is an access, each once.
    pub(crate) fn beside(&self, table: &WatchTable) -> impl Iterator<Item = Arc<Probe>> + use<> {
        let on_pages = self.pages.iter().flat_map(|page| table.on_page(*page));
        // The page is not protected because of a word with a debug register.
        let on_pages = on_pages.filter(|watch| !watch.access.is_in_register());
        let mut beside: BTreeMap<ProbeId, Arc<Probe>> = on_pages
            .map(|watch| (watch.probe.id, Arc::clone(&watch.probe)))
            .collect();
        for (_, accessed) in self.accesses.keys() {
            beside.remove(accessed);
        }
        beside.into_values()
    }

    /// Adds an access. The emulator may make the access of an instruction in parts.
    fn add(&mut self, access: SeenAccess) {
        match self.accesses.entry(access.watch.key()) {
            Entry::Vacant(first) => {
                first.insert(access);
            }
            Entry::Occupied(mut earlier) => {
                if access.kind == AccessKind::Write {
                    let earlier = earlier.get_mut();
                    (earlier.kind, earlier.new) = (AccessKind::Write, access.new);
                }
            }
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

    /// The accesses of the instruction. `has_read` is whether its reads count: the emulator has executed the guest's own instruction.
    pub(crate) fn into_seen(self, has_read: bool) -> Seen {
        let seen = self
            .seen
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match has_read {
            true => seen,
            false => seen.without_reads(),
        }
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
        let touched = touched.filter(|watch| watch.access.has_writes());
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
                seen.add(SeenAccess::write(watch, old, watch.value(&self.memory)));
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
        if !self.table.hides(gpa) {
            return;
        }
        let mut seen = self.seen();
        seen.pages.insert(gpa.page());
        let touched = self.table.touched(gpa, bytes.len());
        for watch in touched.filter(|watch| watch.access.has_reads()) {
            seen.add(SeenAccess::read(watch, watch.value(&self.memory)));
        }
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

    use manifest::WatchedAccess;
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
        let seen = watched.into_seen(true);
        let ones = u64::from_le_bytes([1; 8]);
        let writes = seen
            .accesses()
            .map(|write| (write.watch.gpa.0, write.old, write.new));
        assert_eq!(
            writes.collect::<Vec<_>>(),
            [(0x1000, 0, ones), (0x1004, 0, ones)]
        );
        let beside = seen.beside(&table).map(|probe| probe.id.0);
        assert_eq!(beside.collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn instruction_that_reads_and_writes_a_word_is_one_access() {
        use WatchedAccess::{Both, Reads, Writes};
        let table = WatchTable::with([
            (0x1000, 8, Both),
            (0x1000, 8, Reads),
            (0x1000, 8, Writes),
            (0x1008, 8, Reads),
            (0x2000, 8, Writes),
        ]);
        let memory = FakeMemory::new(vec![0; 0x3000]);
        memory.put(0x1000, &[5]);
        let add = |executed| {
            let watched = WatchedMemory::new(&memory, &table);
            for gpa in [0x1000, 0x2000] {
                watched.on_read(Gpa(gpa), &mut [0; 8]);
            }
            watched.write(Gpa(0x1000), &[6]).expect("memory");
            watched.into_seen(executed)
        };
        let seen = |seen: &Seen| -> Vec<_> {
            let accesses = seen.accesses();
            accesses
                .map(|access| (access.watch.probe.id.0, access.kind, access.old, access.new))
                .collect()
        };
        let executed = add(true);
        assert_eq!(
            seen(&executed),
            [
                (1, AccessKind::Write, 5, 6),
                (2, AccessKind::Read, 5, 5),
                (3, AccessKind::Write, 5, 6)
            ]
        );
        // The read of the other page has not exited.
        let beside = executed.beside(&table).map(|probe| probe.id.0);
        assert_eq!(beside.collect::<Vec<_>>(), [4]);
        memory.put(0x1000, &[5]);
        let kinds = seen(&add(false));
        assert!(kinds.iter().all(|(_, kind, ..)| *kind == AccessKind::Write));
        assert_eq!(kinds.len(), 2);
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
        let seen = watched.into_seen(true);
        assert_eq!(seen.accesses().count(), MANY);
        assert_eq!(seen.beside(&table).count(), 2);
        assert_eq!(memory.1.into_inner(), 2 * MANY);
    }
}
