//! The hidden pages, as the emulator of instructions meets them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use address::Gpa;
use arc_swap::ArcSwap;
use introspect::{PhysMemory, Unreadable};
use text::{GuestMemory, Unwritable};

use super::code_table::CodeTable;
use super::mark_counter::RaisedCounter;
use crate::registry::Probe;

/// The hidden pages. vCPUs look pages up without a lock; the table is replaced with the vCPUs paused.
#[derive(Debug, Default)]
pub(crate) struct HiddenCode {
    pub(crate) table: ArcSwap<CodeTable>,
    /// The hidden pages that an emulated instruction of the vCPU would have written to.
    written: Mutex<BTreeMap<usize, BTreeSet<Gpa>>>,
}

impl HiddenCode {
    /// Whether the page with the byte at `gpa` is hidden.
    pub(crate) fn holds(&self, gpa: Gpa) -> bool {
        self.table.load().holding(gpa).is_some()
    }

    /// Takes the pages that the present instruction of the vCPU would have written to.
    pub(crate) fn take_written(&self, vcpu: usize) -> BTreeSet<Gpa> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.remove(&vcpu).unwrap_or_default()
    }

    fn note_write(&self, vcpu: usize, gpa: Gpa) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.entry(vcpu).or_default().insert(gpa.page());
    }
}

/// Guest memory whose hidden pages cannot be written: a write to a hidden page may mean that the kernel has given the page to another use. So
/// the hardware executes the instruction, with the other vCPUs paused, after a look at the page.
pub(crate) struct ReadOnlyCode<'m> {
    memory: &'m dyn GuestMemory,
    hidden: &'m HiddenCode,
    /// The number of the vCPU that accesses the memory.
    vcpu: usize,
    table: Arc<CodeTable>,
    /// The hidden page whose first byte has been read: a copy of a page begins there.
    begun: Mutex<Option<Gpa>>,
    raised: Option<&'m RaisedCounter>,
}

impl<'m> ReadOnlyCode<'m> {
    /// `memory`, for an instruction of a vCPU, without writes to the pages that are hidden now, and with a counter raised.
    pub(crate) fn new(
        memory: &'m dyn GuestMemory,
        hidden: &'m HiddenCode,
        vcpu: usize,
        raised: Option<&'m RaisedCounter>,
    ) -> Self {
        Self {
            memory,
            hidden,
            vcpu,
            table: hidden.table.load_full(),
            begun: Mutex::default(),
            raised,
        }
    }

    /// Whether no page is hidden.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The probes on the hidden page whose first byte has been read.
    pub(crate) fn begun(&self) -> impl Iterator<Item = &Arc<Probe>> {
        let begun = *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let page = begun.and_then(|gpa| self.table.holding(gpa));
        page.into_iter().flat_map(|page| &page.probes)
    }

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

    fn on_read(&self, gpa: Gpa, bytes: &mut [u8]) {
        if let Some(raised) = self.raised {
            raised.raise(gpa, bytes);
        }
        if gpa.page_offset() == 0 && self.table.holding(gpa).is_some() {
            *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(gpa);
        }
    }

    fn is_writable(&self, gpa: Gpa) -> bool {
        let is_hidden = self.table.holding(gpa).is_some();
        if is_hidden {
            self.hidden.note_write(self.vcpu, gpa);
        }
        !is_hidden
    }
}
