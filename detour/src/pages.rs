//! The pages of the detour region: 2 MiB of detour memory each, and the entry of the kernel's page directory that maps it.
//!
//! ```text
//!  guest-physical, above RAM                         page directory of the kernel's image
//!  ┌──────────────────────────┐ read-only slot       ┌───────┐
//!  │ code │ table │ code │ …  │ ◀────────────────────│ entry │ present, executable, not writable
//!  ├──────────────────────────┤ writable slot        │ entry │ present, writable, not executable
//!  │ words │ ring │ words │ … │ ◀────────────────────│ …     │
//!  └──────────────────────────┘                      └───────┘
//! ```
//!
//! Detour memory is mapped once, with room for the maximum number of pages; the host allocates a page at the first write. A page
//! is added when the last page of its kind is full, with the vCPUs paused. No page is ever removed: a thread of the guest may be
//! inside.

use std::sync::Arc;

use address::{Gpa, Gva};
use introspect::{EntryAt, Level, PagingState, entry_at, walk};
use text::{GuestError, GuestMemory, Paused};
use vmm::DetourSize;

use super::place::{MAX_PAGES, REGION_BYTES as PAGE_BYTES, candidates, early};
use super::{DetourError, KernelSpace, Tables};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// The entry maps a page of 2 MiB, not a page table.
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
/// EFER.NXE: the processor supports [`NO_EXECUTE`].
const EFER_NXE: u64 = 1 << 11;

/// Whether two entries are equal, apart from the bits set by the processor or by a KVM that emulates the processor. (A write with
/// CR0.WP clear makes a page dirty that is not writable.)
const fn is_same(one: u64, other: u64) -> bool {
    (one ^ other) & !(ACCESSED | DIRTY) == 0
}

/// The global flag of the region's pages, the same as for the kernel's text; `None` if the text is not mapped.
fn global(memory: &dyn GuestMemory, kernel: &KernelSpace) -> Option<u64> {
    let text = walk(memory, &kernel.paging, kernel.image.start).ok()?;
    let is_global = text.global && kernel.tables == Tables::Settled;
    Some(if is_global { GLOBAL } else { 0 })
}

/// The guest's access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    /// Read and execute.
    Code,
    /// Read and write.
    Data,
}

/// A page of the region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// The address in the guest's kernel.
    pub(super) base: Gva,
    pub(super) gpa: Gpa,
    kind: PageKind,
    /// The entry that maps the page, as hyprobe wrote the value.
    entry: EntryAt,
}

impl Page {
    fn holds(&self, at: Gva) -> bool {
        at.0.wrapping_sub(self.base.0) < PAGE_BYTES
    }
}

/// An entry of the kernel's page directory that maps a page of the region, and that the guest has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedEntry {
    /// The address of the entry.
    pub gpa: Gpa,
    /// The value written by hyprobe.
    pub was: u64,
    /// The present value.
    pub is: u64,
}

/// All pages of the region.
#[derive(Debug)]
pub(super) struct Pages {
    /// The first address of detour memory.
    gpa: Gpa,
    pub(super) memory: Arc<dyn GuestMemory>,
    pub(super) kernel: KernelSpace,
    /// The global flag, as for the kernel's own text: with KPTI, global entries stay in the TLB while programs run. Zero before
    /// the kernel has decided on KPTI.
    global: u64,
    mapped: Vec<Page>,
}

impl Pages {
    /// Maps detour memory, without any page.
    pub(super) fn new(
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
    ) -> Result<Self, DetourError> {
        let global = global(memory, kernel).ok_or(DetourError::NotMapped)?;
        let bytes = MAX_PAGES as u64 * PAGE_BYTES;
        let (gpa, detour) = paused.map_detour(DetourSize {
            read_only: bytes,
            writable: bytes,
        })?;
        Ok(Self {
            gpa,
            memory: detour,
            kernel: kernel.clone(),
            global,
            mapped: Vec::new(),
        })
    }

    /// Notes that the kernel has set its page tables up. Mapped pages stay unchanged.
    pub(super) fn settle(&mut self, memory: &dyn GuestMemory, kernel: &KernelSpace) {
        self.kernel = kernel.clone();
        self.global = global(memory, kernel).unwrap_or(0);
    }

    fn flags(&self, kind: PageKind) -> u64 {
        // The accessed bit is set, and the dirty bit for writable pages: the processor has no bit left to write.
        let common = PRESENT | ACCESSED | LARGE | self.global;
        match kind {
            PageKind::Code => common,
            PageKind::Data if self.kernel.paging.efer & EFER_NXE != 0 => {
                common | WRITABLE | DIRTY | NO_EXECUTE
            }
            PageKind::Data => common | WRITABLE | DIRTY,
        }
    }

    /// Maps one more page, which begins with `contents`; the rest is zero.
    ///
    /// # Errors
    ///
    /// If the maximum is reached, no entry is free, or memory cannot be written; then no change is visible to the guest.
    pub(super) fn map(
        &mut self,
        memory: &dyn GuestMemory,
        kind: PageKind,
        contents: &[u8],
    ) -> Result<Page, DetourError> {
        let index = self.mapped.iter().filter(|page| page.kind == kind).count();
        if index >= MAX_PAGES {
            return Err(DetourError::Full);
        }
        let first = match kind {
            PageKind::Code => 0,
            PageKind::Data => MAX_PAGES,
        };
        let gpa = self.gpa.wrapping_add((first + index) as u64 * PAGE_BYTES);
        let (base, place) = self.free_place(memory).ok_or(DetourError::NoPlace)?;
        let entry = EntryAt {
            gpa: place,
            value: gpa.0 | self.flags(kind),
        };
        self.memory.write(gpa, contents).map_err(GuestError::from)?;
        let is_free = memory.compare_exchange(place, &[0; 8], &entry.value.to_le_bytes());
        if !is_free.map_err(GuestError::from)? {
            return Err(DetourError::NoPlace);
        }
        let page = Page {
            base,
            gpa,
            kind,
            entry,
        };
        self.mapped.push(page);
        Ok(page)
    }

    /// The first unmapped address, and its entry of the page directory.
    fn free_place(&self, memory: &dyn GuestMemory) -> Option<(Gva, Gpa)> {
        let KernelSpace {
            paging,
            image,
            tables,
        } = &self.kernel;
        let free = |at| {
            let entry = entry_at(memory, paging, at, Level::Pd).ok()?;
            (entry.value == 0).then_some((at, entry.gpa))
        };
        match tables {
            Tables::Early => early().find_map(free),
            Tables::Settled => candidates(image).find_map(free),
        }
    }

    /// Whether a page is at `at`.
    pub(super) fn maps(&self, at: Gva) -> bool {
        self.mapped.iter().any(|page| page.holds(at))
    }

    /// Whether `paging` maps the region's page at `at`. The guest may have changed its tables, or run on other tables: with KPTI
    /// the tables of programs do not map the region.
    pub(super) fn is_reached(
        &self,
        memory: &dyn GuestMemory,
        paging: &PagingState,
        at: Gva,
    ) -> bool {
        let Some(page) = self.mapped.iter().find(|page| page.holds(at)) else {
            return false;
        };
        entry_at(memory, paging, page.base, Level::Pd).is_ok_and(|found| {
            found.gpa == page.entry.gpa && is_same(found.value, page.entry.value)
        })
    }

    /// The first entry whose value differs from the value written by hyprobe.
    pub(super) fn changed_entry(&self, memory: &dyn GuestMemory) -> Option<ChangedEntry> {
        self.mapped.iter().find_map(|page| {
            let EntryAt { gpa, value: was } = page.entry;
            let is = memory.read_u64(gpa).ok()?;
            (!is_same(is, was)).then_some(ChangedEntry { gpa, was, is })
        })
    }

    /// Zeroes every entry that the guest has not changed.
    pub(super) fn unmap(&mut self, memory: &dyn GuestMemory) -> Result<(), GuestError> {
        while let Some(page) = self.mapped.last() {
            let value = memory.read_u64(page.entry.gpa)?;
            if is_same(value, page.entry.value) {
                memory.compare_exchange(page.entry.gpa, &value.to_le_bytes(), &[0; 8])?;
            }
            self.mapped.pop();
        }
        Ok(())
    }

    /// Whether `gpa`, an address in detour memory, is read-only for the guest.
    pub(super) fn is_read_only(&self, gpa: Gpa) -> bool {
        gpa.0.wrapping_sub(self.gpa.0) < MAX_PAGES as u64 * PAGE_BYTES
    }

    /// Reads the region's bytes from `at` on, within a page. `None` if the region has no page there.
    pub(super) fn read(&self, at: Gva, buf: &mut [u8]) -> Option<()> {
        let page = self.mapped.iter().find(|page| page.holds(at))?;
        let offset = at.offset_from(page.base)?;
        self.memory.read(page.gpa.wrapping_add(offset), buf).ok()
    }

    /// Writes to a page.
    pub(super) fn write(&self, page: Page, offset: usize, bytes: &[u8]) -> Result<(), GuestError> {
        let at = page.gpa.wrapping_add(offset as u64);
        Ok(self.memory.write(at, bytes)?)
    }
}
