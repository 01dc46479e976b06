//! The region: its memory, and the entry of the kernel's page tables that leads there.

use std::sync::Arc;

use introspect::insn::Decoded;
use introspect::{EntryAt, Gpa, Gva, KernelInt3, Level, PagingState, entry_at, walk};
use vmm::DetourSize;

use super::cells::Cells;
use super::copies::Copies;
use super::evacuate::Keeper;
use super::jumped::Jumped;
use super::made::{Detours, Keeps, LeftAt, MadeDetour, Use};
use super::place::{REGION_BYTES, candidates};
use super::ring::Ring;
use super::switch::{LeadsTo, SWITCH_BYTES, Switch};
use super::{DetourError, KernelSpace, WayOut};
use crate::guest::{GuestError, GuestMemory, Paused};
use crate::plant::Jump;

/// What copies lie in.
const COPIES_BYTES: usize = 64 * 0x1000;
/// Where the switch is, and behind it the detours.
const SWITCH: usize = COPIES_BYTES;
const DETOURS: usize = SWITCH + SWITCH_BYTES;
/// What cells lie in, and what the ring lies in: behind the code, in pages of the same size.
const CELLS: u64 = REGION_BYTES;
const RING: u64 = 2 * REGION_BYTES;
const DATA_BYTES: u64 = 2 * REGION_BYTES;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// The entry maps 2 MiB itself.
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
/// EFER.NXE: the processor knows of [`NO_EXECUTE`].
const EFER_NXE: u64 = 1 << 11;

/// Whether two entries say the same. What the processor, or a KVM that emulates it, notes in them does not count: a
/// write that CR0.WP lets through makes a page dirty that is not writable.
const fn is_same(one: u64, other: u64) -> bool {
    (one ^ other) & !(ACCESSED | DIRTY) == 0
}

/// An entry of the kernel's page directory that leads to the region, and that the guest has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangedEntry {
    pub(crate) gpa: Gpa,
    /// What was written there.
    pub(crate) was: u64,
    pub(crate) is: u64,
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
    pub(super) kernel: KernelSpace,
    pub(super) copies: Copies,
    detours: Detours,
    /// Once there is a detour: the entry that leads to the cells, and these.
    cells: Option<(EntryAt, Cells)>,
    /// Once a detour records.
    ring: Option<(EntryAt, Arc<Ring>)>,
    /// Once an `int3` leads to a detour.
    switch: Option<Switch>,
    /// What has kept it when it was last to be left.
    pub(super) keepers: Vec<Keeper>,
}

/// The first place for a region where nothing is mapped: its address, and where its entry of the page directory is.
fn free_place(memory: &dyn GuestMemory, kernel: &KernelSpace) -> Option<(Gva, Gpa)> {
    candidates(&kernel.image).find_map(|at| {
        let entry = entry_at(memory, &kernel.paging, at, Level::Pd).ok()?;
        (entry.value == 0).then_some((at, entry.gpa))
    })
}

/// Writes an entry where there is none. Says whether there still was none.
fn link(memory: &dyn GuestMemory, entry: EntryAt) -> Result<bool, GuestError> {
    Ok(memory.compare_exchange(entry.gpa, &[0; 8], &entry.value.to_le_bytes())?)
}

/// Takes an entry away. If the guest has changed it, it stays as it is.
fn unlink(memory: &dyn GuestMemory, entry: EntryAt) -> Result<(), GuestError> {
    let value = memory.read_u64(entry.gpa)?;
    if is_same(value, entry.value) {
        memory.compare_exchange(entry.gpa, &value.to_le_bytes(), &[0; 8])?;
    }
    Ok(())
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
        let (base, place) = free_place(memory, kernel).ok_or(DetourError::NoPlace)?;
        let (gpa, detour) = paused.map_detour(DetourSize {
            read_only: REGION_BYTES,
            writable: DATA_BYTES,
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
            kernel: kernel.clone(),
            copies: Copies::new(base, COPIES_BYTES),
            detours: Detours::new(base, DETOURS..region_bytes()),
            cells: None,
            ring: None,
            switch: None,
            keepers: Vec::new(),
        };
        region.fill()?;
        if !link(memory, region.directory)? {
            paused.unmap_detour()?;
            return Err(DetourError::NoPlace);
        }
        Ok(region)
    }

    fn fill(&self) -> Result<(), GuestError> {
        let filler = vec![FILLER; region_bytes()];
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

    /// The detour for `jumped`, which is made if there is none yet.
    pub(super) fn make(
        &mut self,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
        jumped: &Jumped,
        usage: &Use,
    ) -> Result<MadeDetour, DetourError> {
        if let Some(detour) = self.detours.of(jumped, usage) {
            return Ok(detour);
        }
        self.lead_to_cells(memory, kernel)?;
        if matches!(usage.keeps, Keeps::Records | Keeps::Calls | Keeps::Returns) {
            self.lead_to_ring(memory, kernel)?;
        }
        let ring = self.ring.as_ref().map(|(_, ring)| ring.base);
        let Some((_, cells)) = &mut self.cells else {
            return Err(DetourError::NoPlace);
        };
        let new = self.detours.assemble(jumped, usage, cells, ring)?;
        let at = self.gpa.wrapping_add(new.offset as u64);
        self.memory
            .write(at, &new.code.bytes)
            .map_err(GuestError::from)?;
        Ok(self.detours.keep(new, jumped, usage, cells))
    }

    /// The `int3` at `site`, which `int3` says how the kernel handles, leads to `to` from now on. Where there has been no
    /// switch, how the handler is to be led there.
    pub(super) fn lead(
        &mut self,
        int3: &KernelInt3,
        site: Gva,
        to: Gva,
    ) -> Result<Option<(Gva, Jump)>, DetourError> {
        let begun = match &self.switch {
            Some(_) => None,
            None => {
                let switch = Switch::new(self.base.wrapping_add(SWITCH as u64), int3)?;
                let jump = switch.jump()?;
                self.write(SWITCH, &switch.bytes())?;
                self.switch = Some(switch);
                Some(jump)
            }
        };
        self.set_lead(site, LeadsTo::Detour(to))?;
        Ok(begun)
    }

    /// If an `int3` at `site` has led to a detour, it leads there instead.
    pub(super) fn set_lead(&mut self, site: Gva, to: LeadsTo) -> Result<(), DetourError> {
        if let Some(switch) = &mut self.switch
            && let Some(place) = switch.lead(site, to)?
        {
            self.write(SWITCH + place.offset, &place.bytes)?;
        }
        Ok(())
    }

    /// The switch could not be led to: there is none.
    pub(super) fn drop_switch(&mut self) {
        self.switch = None;
    }

    /// If an `int3` leads to a detour, or has done so.
    pub(super) fn switch(&self) -> Option<&Switch> {
        self.switch.as_ref()
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DetourError> {
        let at = self.gpa.wrapping_add(offset as u64);
        Ok(self.memory.write(at, bytes).map_err(GuestError::from)?)
    }

    /// The kernel's page tables are led to the cells.
    fn lead_to_cells(
        &mut self,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
    ) -> Result<(), DetourError> {
        if self.cells.is_some() {
            return Ok(());
        }
        let gpa = self.gpa.wrapping_add(CELLS);
        let (base, entry) = self.lead_to_data(memory, kernel, gpa)?;
        let cells = Cells {
            memory: Arc::clone(&self.memory),
            base,
            gpa,
            bytes: REGION_BYTES,
            given: 0,
        };
        self.cells = Some((entry, cells));
        Ok(())
    }

    /// And to the ring.
    fn lead_to_ring(
        &mut self,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
    ) -> Result<(), DetourError> {
        if self.ring.is_some() {
            return Ok(());
        }
        let gpa = self.gpa.wrapping_add(RING);
        let (base, entry) = self.lead_to_data(memory, kernel, gpa)?;
        let ring = Arc::new(Ring::new(Arc::clone(&self.memory), gpa, base)?);
        self.ring = Some((entry, ring));
        Ok(())
    }

    /// Leads a free entry to memory that the guest's kernel may write.
    fn lead_to_data(
        &self,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
        gpa: Gpa,
    ) -> Result<(Gva, EntryAt), DetourError> {
        let (base, place) = free_place(memory, kernel).ok_or(DetourError::NoPlace)?;
        let no_execute = if kernel.paging.efer & EFER_NXE != 0 {
            NO_EXECUTE
        } else {
            0
        };
        let entry = EntryAt {
            gpa: place,
            // As the code's, but for what may be done there. Accessed and dirty already: nothing is left to write.
            value: gpa.0
                | PRESENT
                | WRITABLE
                | ACCESSED
                | DIRTY
                | LARGE
                | self.directory.value & GLOBAL
                | no_execute,
        };
        if !link(memory, entry)? {
            return Err(DetourError::NoPlace);
        }
        Ok((base, entry))
    }

    /// The entries that lead to it.
    fn entries(&self) -> impl Iterator<Item = EntryAt> {
        let cells = self.cells.as_ref().map(|(entry, _)| *entry);
        let ring = self.ring.as_ref().map(|(entry, _)| *entry);
        cells.into_iter().chain(ring).chain([self.directory])
    }

    /// The first of them that says something else than was written.
    pub(super) fn changed_entry(&self, memory: &dyn GuestMemory) -> Option<ChangedEntry> {
        self.entries().find_map(|entry| {
            let (gpa, was) = (entry.gpa, entry.value);
            let is = memory.read_u64(gpa).ok()?;
            (!is_same(is, was)).then_some(ChangedEntry { gpa, was, is })
        })
    }

    /// The ring, once a detour records.
    pub(super) fn ring(&self) -> Option<Arc<Ring>> {
        self.ring.as_ref().map(|(_, ring)| Arc::clone(ring))
    }

    /// Whose exit is at `at`.
    pub(super) fn left_at(&self, at: Gva) -> Option<LeftAt> {
        self.detours.left_at(at)
    }

    /// The addresses of the instructions for which there is a copy or a detour.
    pub(super) fn originals(&self) -> impl Iterator<Item = Gva> {
        self.copies.originals().chain(self.detours.originals())
    }

    /// For each address at which a thread can be in the region, where it would be without it.
    pub(super) fn ways_out(&self) -> impl Iterator<Item = (Gva, WayOut)> {
        self.copies.ways_out().chain(self.detours.ways_out())
    }

    /// The addresses at which nobody can be but a vCPU that has interrupts off.
    pub(super) fn uninterrupted(&self) -> impl Iterator<Item = Gva> {
        self.switch.iter().flat_map(Switch::addresses)
    }

    /// Whether this guest-physical address is one that the guest may only read.
    pub(super) fn holds(&self, gpa: Gpa) -> bool {
        (self.gpa.0..self.gpa.0 + REGION_BYTES).contains(&gpa.0)
    }

    /// The addresses of its code, as the guest's kernel sees them.
    pub(super) fn code(&self) -> std::ops::Range<u64> {
        self.base.0..self.base.0 + REGION_BYTES
    }

    /// The kernel's page tables are again what they were.
    pub(super) fn unlink(&self, memory: &dyn GuestMemory) -> Result<(), GuestError> {
        for entry in self.entries() {
            unlink(memory, entry)?;
        }
        Ok(())
    }
}

/// Whether `at` is in the code of a region that begins at `base`.
pub(super) fn holds(base: u64, at: Gva) -> bool {
    at.0.wrapping_sub(base) < REGION_BYTES
}

fn region_bytes() -> usize {
    usize::try_from(REGION_BYTES).unwrap_or(0)
}
