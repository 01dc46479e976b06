//! The region: its memory, and the entry of the kernel's page tables that leads there.

use std::sync::Arc;

use introspect::insn::Decoded;
use introspect::{EntryAt, Gpa, Gva, Level, PagingState, PhysMemory, entry_at, walk};
use vmm::DetourSize;

use super::copies::Copies;
use super::place::candidates;
use super::{DetourError, KernelSpace};
use crate::guest::{GuestError, GuestMemory, Paused};

const PAGE_BYTES: u64 = 0x1000;
/// Pages of copies.
const CODE_PAGES: u64 = 64;
/// Pages that detours write to.
const DATA_PAGES: u64 = 64;
/// The first of those pages, counted from the beginning of the region. Between them and the code one is not mapped.
const FIRST_DATA_PAGE: u64 = CODE_PAGES + 1;
const CODE_BYTES: u64 = CODE_PAGES * PAGE_BYTES;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
/// What Linux puts into an entry that leads to a table of the kernel's. Accessed already: the processor has nothing to
/// write.
const TO_TABLE: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY;

/// Whether two entries say the same. What the processor, or a KVM that emulates it, notes in them does not count: a
/// write that CR0.WP lets through makes a page dirty that is not writable.
const fn is_same(one: u64, other: u64) -> bool {
    (one ^ other) & !(ACCESSED | DIRTY) == 0
}

/// Where no copy is.
const FILLER: u8 = 0xcc;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Region {
    base: Gva,
    gpa: Gpa,
    memory: Arc<dyn GuestMemory>,
    /// The entry of the kernel's page directory, as it was written.
    directory: EntryAt,
    /// Of each entry of the table, but the page.
    code_flags: u64,
    pub(super) copies: Copies,
}

impl Region {
    /// Looks for a place, fills the region's memory, and only then leads the kernel's page tables there.
    pub(super) fn lay(
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
    ) -> Result<Self, DetourError> {
        let KernelSpace { paging, image } = kernel;
        let text = walk(memory, paging, image.start).map_err(|_| DetourError::NotMapped)?;
        let (base, place) = candidates(image)
            .find_map(|at| {
                let entry = entry_at(memory, paging, at, Level::Pd).ok()?;
                (entry.value == 0).then_some((at, entry.gpa))
            })
            .ok_or(DetourError::NoPlace)?;
        let (gpa, detour) = paused.map_detour(DetourSize {
            read_only: CODE_BYTES,
            writable: (1 + DATA_PAGES) * PAGE_BYTES,
        })?;
        // As the kernel has it for itself: with KPTI, what is global stays in the TLB while programs run.
        let global = if text.global { GLOBAL } else { 0 };
        let no_execute = if paging.no_execute_enabled() {
            NO_EXECUTE
        } else {
            0
        };
        let table = gpa.wrapping_add(CODE_BYTES);
        let region = Self {
            base,
            gpa,
            memory: detour,
            directory: EntryAt {
                gpa: place,
                value: table.0 | TO_TABLE,
            },
            code_flags: PRESENT | ACCESSED | global,
            copies: Copies::new(base, usize::try_from(CODE_BYTES).unwrap_or(0)),
        };
        let data_flags = PRESENT | WRITABLE | ACCESSED | DIRTY | global | no_execute;
        region.fill(data_flags)?;
        let taken = memory
            .compare_exchange(place, &[0; 8], &region.directory.value.to_le_bytes())
            .map_err(GuestError::from)?;
        if !taken {
            paused.unmap_detour()?;
            return Err(DetourError::NoPlace);
        }
        Ok(region)
    }

    fn fill(&self, data_flags: u64) -> Result<(), GuestError> {
        let page = [FILLER; 0x1000];
        for index in 0..CODE_PAGES {
            self.memory
                .write(self.gpa.wrapping_add(index * PAGE_BYTES), &page)?;
            self.set_entry(index, self.page(index) | self.code_flags)?;
        }
        for index in 0..DATA_PAGES {
            let page = self.table().wrapping_add((1 + index) * PAGE_BYTES);
            self.set_entry(FIRST_DATA_PAGE + index, page.0 | data_flags)?;
        }
        Ok(())
    }

    fn table(&self) -> Gpa {
        self.gpa.wrapping_add(CODE_BYTES)
    }

    /// The page of code with this number.
    fn page(&self, index: u64) -> u64 {
        self.gpa.wrapping_add(index * PAGE_BYTES).0
    }

    fn set_entry(&self, index: u64, value: u64) -> Result<(), GuestError> {
        let at = self.table().wrapping_add(index * 8);
        Ok(self.memory.write(at, &value.to_le_bytes())?)
    }

    /// Whether a vCPU that translates addresses by `paging` finds our code at `at`. The guest may have changed its
    /// tables, or run on others: those of programs do not lead here where the kernel hides from them.
    pub(super) fn is_reached(
        &self,
        memory: &dyn GuestMemory,
        paging: &PagingState,
        at: Gva,
    ) -> bool {
        let index = (at.0 - self.base.0) / PAGE_BYTES;
        let entry = self.memory.read_u64(self.table().wrapping_add(index * 8));
        entry_at(memory, paging, self.base, Level::Pd).is_ok_and(|found| {
            found.gpa == self.directory.gpa && is_same(found.value, self.directory.value)
        }) && entry.is_ok_and(|entry| is_same(entry, self.page(index) | self.code_flags))
    }

    /// Makes a copy of `decoded`, if there is none yet.
    pub(super) fn copy(&mut self, decoded: &Decoded) -> Result<(), DetourError> {
        if let Some(copy) = self.copies.make(decoded)? {
            let at = self.gpa.wrapping_add(copy.offset as u64);
            self.memory
                .write(at, copy.bytes())
                .map_err(GuestError::from)?;
        }
        Ok(())
    }

    /// Whether this guest-physical address is one that the guest may only read.
    pub(super) fn holds(&self, gpa: Gpa) -> bool {
        (self.gpa.0..self.table().0).contains(&gpa.0)
    }

    /// The addresses of its code, as the guest's kernel sees them.
    pub(super) fn code(&self) -> std::ops::Range<u64> {
        self.base.0..self.base.0 + CODE_BYTES
    }

    /// The kernel's page tables are again what they were. If the guest has changed the entry, it stays as it is.
    pub(super) fn unlink(&self, memory: &dyn GuestMemory) -> Result<(), GuestError> {
        let entry = memory.read_u64(self.directory.gpa)?;
        if is_same(entry, self.directory.value) {
            memory.compare_exchange(self.directory.gpa, &entry.to_le_bytes(), &[0; 8])?;
        }
        Ok(())
    }
}
