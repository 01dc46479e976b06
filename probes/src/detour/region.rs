//! The region: its memory, and the entry of the kernel's page tables that leads there.

use std::sync::Arc;

use introspect::insn::Decoded;
use introspect::{EntryAt, Gpa, Gva, Level, PagingState, entry_at, walk};
use vmm::DetourSize;

use super::copies::Copies;
use super::place::{REGION_BYTES, candidates};
use super::{DetourError, KernelSpace};
use crate::guest::{GuestError, GuestMemory, Paused};

/// What copies lie in.
const CODE_BYTES: u64 = 64 * 0x1000;

const PRESENT: u64 = 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// The entry maps 2 MiB itself.
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;

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
            read_only: REGION_BYTES,
            writable: 0,
        })?;
        // As the kernel has it for itself: with KPTI, what is global stays in the TLB while programs run.
        let global = if text.global { GLOBAL } else { 0 };
        let region = Self {
            base,
            gpa,
            memory: detour,
            directory: EntryAt {
                gpa: place,
                // Accessed already: the processor has nothing to write.
                value: gpa.0 | PRESENT | ACCESSED | LARGE | global,
            },
            copies: Copies::new(base, usize::try_from(CODE_BYTES).unwrap_or(0)),
        };
        region.fill()?;
        let taken = memory
            .compare_exchange(place, &[0; 8], &region.directory.value.to_le_bytes())
            .map_err(GuestError::from)?;
        if !taken {
            paused.unmap_detour()?;
            return Err(DetourError::NoPlace);
        }
        Ok(region)
    }

    fn fill(&self) -> Result<(), GuestError> {
        let filler = vec![FILLER; usize::try_from(REGION_BYTES).unwrap_or(0)];
        Ok(self.memory.write(self.gpa, &filler)?)
    }

    /// Whether a vCPU that translates addresses by `paging` finds our code at `at`. The guest may have changed its
    /// tables, or run on others: those of programs do not lead here where the kernel hides from them.
    pub(super) fn is_reached(&self, memory: &dyn GuestMemory, paging: &PagingState) -> bool {
        entry_at(memory, paging, self.base, Level::Pd).is_ok_and(|found| {
            found.gpa == self.directory.gpa && is_same(found.value, self.directory.value)
        })
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
        (self.gpa.0..self.gpa.0 + REGION_BYTES).contains(&gpa.0)
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
