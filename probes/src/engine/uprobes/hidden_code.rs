//! The hidden pages, as the emulator of instructions meets them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use address::Gpa;
use arc_swap::ArcSwap;
use introspect::{PhysMemory, Unreadable};
use text::{GuestMemory, Unwritable};

use super::code_table::CodeTable;

/// The hidden pages. vCPUs look pages up without a lock; the table is replaced with the vCPUs paused.
#[derive(Debug, Default)]
pub(crate) struct HiddenCode {
    pub(crate) table: ArcSwap<CodeTable>,
    /// The hidden pages that an emulated instruction would have written to, since the last look.
    written: Mutex<BTreeSet<Gpa>>,
}

impl HiddenCode {
    /// Whether the page with the byte at `gpa` is hidden.
    pub(crate) fn holds(&self, gpa: Gpa) -> bool {
        self.table.load().holding(gpa).is_some()
    }

    /// Takes the pages that an instruction would have written to.
    pub(crate) fn take_written(&self) -> BTreeSet<Gpa> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *written)
    }

    fn note_write(&self, gpa: Gpa) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(gpa.page());
    }
}

/// Guest memory whose hidden pages cannot be written: a write to a hidden page may mean that the kernel has given the page to another use. So
/// the hardware executes the instruction, with the other vCPUs paused, after a look at the page.
pub(crate) struct ReadOnlyCode<'m> {
    pub(crate) memory: &'m dyn GuestMemory,
    pub(crate) hidden: &'m HiddenCode,
    pub(crate) table: Arc<CodeTable>,
}

impl ReadOnlyCode<'_> {
    fn check(&self, gpa: Gpa, len: usize) -> Result<(), Unwritable> {
        let last = gpa.wrapping_add((len as u64).saturating_sub(1));
        let hidden = [gpa, last].into_iter().find(|at| !self.is_writable(*at));
        match hidden {
            Some(_) => Err(Unwritable { gpa, len }),
            None => Ok(()),
        }
    }
}

impl PhysMemory for ReadOnlyCode<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.memory.read(gpa, buf)
    }

    fn read_u64(&self, gpa: Gpa) -> Result<u64, Unreadable> {
        self.memory.read_u64(gpa)
    }
}

impl GuestMemory for ReadOnlyCode<'_> {
    fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unwritable> {
        self.check(gpa, bytes.len())?;
        self.memory.write(gpa, bytes)
    }

    fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable> {
        self.check(gpa, new.len())?;
        self.memory.compare_exchange(gpa, old, new)
    }

    fn ranges(&self) -> Vec<Range<Gpa>> {
        self.memory.ranges()
    }

    fn is_writable(&self, gpa: Gpa) -> bool {
        let is_hidden = self.table.holding(gpa).is_some();
        if is_hidden {
            self.hidden.note_write(gpa);
        }
        !is_hidden
    }
}
