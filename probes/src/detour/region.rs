//! The region: the pages that code, words, table and ring lie in, and what has been made there.

use std::sync::Arc;

use introspect::insn::Decoded;
use introspect::{Gpa, Gva, KernelInt3, PagingState};

use super::cells::Cells;
use super::copies::{Copies, NewCopy};
use super::jumped::Jumped;
use super::made::{Detours, LeftAt, MadeDetour, Use};
use super::pages::{ChangedEntry, Page, PageKind, Pages};
use super::place::REGION_BYTES as PAGE_BYTES;
use super::ring::Ring;
use super::switch::{LeadsTo, Switch};
use super::{DetourError, KernelSpace};
use crate::guest::{GuestError, GuestMemory, Paused};
use crate::plant::Jump;

/// Where no code is.
const FILLER: u8 = 0xcc;
/// Code begins at multiples of this.
const ALIGNMENT: usize = 16;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Region {
    pages: Pages,
    code: FreeCode,
    copies: Copies,
    detours: Detours,
    /// Once there is a detour that counts.
    cells: Cells,
    /// Once a detour records.
    ring: Option<Arc<Ring>>,
    /// Once an `int3` leads to a detour, or was to.
    int3: Option<Int3Lead>,
}

/// What is free of the last page of code.
#[derive(Clone, Copy, Debug)]
struct FreeCode {
    page: Page,
    from: usize,
}

/// The switch, and the page that its table lies in.
#[derive(Debug)]
struct Int3Lead {
    switch: Switch,
    table: Page,
    /// Whether the kernel's handler is led there.
    is_open: bool,
}

fn page_bytes() -> usize {
    usize::try_from(PAGE_BYTES).unwrap_or(0)
}

impl FreeCode {
    /// On a page that has just been mapped.
    fn on(page: Page) -> Self {
        Self { page, from: 0 }
    }

    fn at(&self) -> Gva {
        self.page.base.wrapping_add(self.from as u64)
    }

    fn has_room(&self, bytes: usize) -> bool {
        bytes <= page_bytes() - self.from
    }
}

impl Region {
    /// Looks for a place, fills a page of code, and only then leads the kernel's page tables there.
    pub(super) fn lay(
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
    ) -> Result<Self, DetourError> {
        let mut pages = Pages::new(paused, memory, kernel)?;
        let page = Self::map_code(&mut pages, memory)?;
        Ok(Self {
            pages,
            code: FreeCode::on(page),
            copies: Copies::default(),
            detours: Detours::default(),
            cells: Cells::default(),
            ring: None,
            int3: None,
        })
    }

    fn map_code(pages: &mut Pages, memory: &dyn GuestMemory) -> Result<Page, DetourError> {
        pages.map(memory, PageKind::Code, &vec![FILLER; page_bytes()])
    }

    /// Where so many bytes of code can be; on a new page, if the last one is full.
    fn room_for(&mut self, memory: &dyn GuestMemory, bytes: usize) -> Result<Gva, DetourError> {
        if bytes > page_bytes() {
            return Err(DetourError::Full);
        }
        if !self.code.has_room(bytes) {
            self.code = FreeCode::on(Self::map_code(&mut self.pages, memory)?);
        }
        Ok(self.code.at())
    }

    /// Writes code where [`room_for`](Self::room_for) has said, for good.
    fn write_code(&mut self, code: &[u8]) -> Result<(), DetourError> {
        let FreeCode { page, from } = self.code;
        self.pages.write(page, from, code)?;
        let end = (from + code.len()).next_multiple_of(ALIGNMENT);
        self.code.from = end.min(page_bytes());
        Ok(())
    }

    /// Where the kernel was when the region was laid.
    pub(super) fn kernel(&self) -> &KernelSpace {
        &self.pages.kernel
    }

    /// Whether a vCPU that translates addresses by `paging` finds our code at `at`.
    pub(super) fn is_reached(
        &self,
        memory: &dyn GuestMemory,
        paging: &PagingState,
        at: Gva,
    ) -> bool {
        self.pages.is_reached(memory, paging, at)
    }

    /// The copy of `decoded`, if there is one.
    pub(super) fn copy_of(&self, decoded: &Decoded) -> Option<Gva> {
        self.copies.of(decoded)
    }

    /// Makes a copy of `decoded`, if there is none yet.
    pub(super) fn copy(
        &mut self,
        memory: &dyn GuestMemory,
        decoded: &Decoded,
    ) -> Result<(), DetourError> {
        if self.copies.of(decoded).is_some() {
            return Ok(());
        }
        let at = self.room_for(memory, NewCopy::len(decoded))?;
        let copy = NewCopy::new(decoded, at)?;
        self.write_code(copy.bytes())?;
        self.copies.keep(decoded, at);
        Ok(())
    }

    /// The number of the part for `usage` at `site`, if it has been made.
    pub(super) fn part(&self, site: Gva, usage: &Use) -> Option<u32> {
        self.detours.part(site, usage).map(|part| part.who)
    }

    /// The detour for `jumped` and `uses`, which is made if there is none yet.
    pub(super) fn make(
        &mut self,
        memory: &dyn GuestMemory,
        jumped: &Jumped,
        uses: &[Use],
    ) -> Result<MadeDetour, DetourError> {
        if let Some(detour) = self.detours.of(jumped, uses) {
            return Ok(detour);
        }
        if !self.is_reached(memory, &self.pages.kernel.paging, self.code.page.base) {
            return Err(DetourError::NotMapped);
        }
        let site = jumped.site();
        if !self.detours.has_room_at(site) {
            return Err(DetourError::TooManyHere);
        }
        // Nothing is given away for good before the detour has been written.
        let (mut parts, mut ahead, mut cells) = (Vec::new(), 0, self.cells.clone());
        for usage in uses {
            parts.push(match self.detours.part(site, usage) {
                Some(part) => part.clone(),
                None => {
                    if usage.words() > 0 && !cells.has_room(usage.words()) {
                        self.cells = self.new_cells(memory)?;
                        cells = self.cells.clone();
                    }
                    ahead += 1;
                    self.detours.new_part(usage, ahead - 1, &mut cells)?
                }
            });
            if usage.records() {
                self.map_ring(memory)?;
            }
        }
        let ring = self.ring.as_ref().map(|ring| ring.base);
        let mut new = Detours::assemble(jumped, uses, parts, self.code.at(), ring)?;
        let at = self.room_for(memory, new.code.bytes.len())?;
        if at != new.detour.entry {
            // It is on a new page.
            new = Detours::assemble(jumped, uses, new.detour.parts, at, ring)?;
        }
        self.write_code(&new.code.bytes)?;
        self.cells = cells;
        Ok(self.detours.keep(new, jumped, uses))
    }

    /// A new page for words.
    fn new_cells(&mut self, memory: &dyn GuestMemory) -> Result<Cells, DetourError> {
        let page = self.pages.map(memory, PageKind::Data, &[])?;
        let detour = Arc::clone(&self.pages.memory);
        Ok(Cells::on(detour, page.base, page.gpa, PAGE_BYTES))
    }

    fn map_ring(&mut self, memory: &dyn GuestMemory) -> Result<(), DetourError> {
        if self.ring.is_none() {
            let page = self.pages.map(memory, PageKind::Data, &[])?;
            let detour = Arc::clone(&self.pages.memory);
            self.ring = Some(Arc::new(Ring::new(detour, page.gpa, page.base)?));
        }
        Ok(())
    }

    /// The `int3` at `site`, which `int3` says how the kernel handles, leads to `to` from now on. `open` leads the kernel's
    /// handler to the switch, by a jump at an address, where it has not been.
    pub(super) fn lead(
        &mut self,
        memory: &dyn GuestMemory,
        int3: &KernelInt3,
        site: Gva,
        to: Gva,
        open: impl FnOnce(Gva, Jump) -> Result<(), DetourError>,
    ) -> Result<(), DetourError> {
        if self.int3.is_none() {
            let table = self.pages.map(memory, PageKind::Code, &[])?;
            let at = self.room_for(memory, Switch::CODE_BYTES)?;
            let switch = Switch::new(at, table.base, int3)?;
            self.write_code(switch.code())?;
            self.int3 = Some(Int3Lead {
                switch,
                table,
                is_open: false,
            });
        }
        let Some(lead) = &mut self.int3 else {
            return Err(DetourError::NoPlace);
        };
        if !lead.is_open {
            let (at, jump) = lead.switch.jump()?;
            open(at, jump)?;
            lead.is_open = true;
        }
        self.set_lead(site, LeadsTo::Detour(to))
    }

    /// If an `int3` at `site` has led to a detour, it leads there instead.
    pub(super) fn set_lead(&mut self, site: Gva, to: LeadsTo) -> Result<(), DetourError> {
        if let Some(lead) = &mut self.int3
            && let Some(place) = lead.switch.lead(site, to)?
        {
            self.pages.write(lead.table, place.offset, &place.bytes)?;
        }
        Ok(())
    }

    /// If an `int3` leads to a detour, or has done so.
    pub(super) fn switch(&self) -> Option<&Switch> {
        self.int3.as_ref().map(|lead| &lead.switch)
    }

    /// Whether the kernel's handler of `int3` is led to code and table that are still mapped as they were.
    pub(super) fn is_switch_reached(&self, memory: &dyn GuestMemory) -> bool {
        let Some(lead) = &self.int3 else { return false };
        let paging = &self.pages.kernel.paging;
        [lead.switch.entry(), lead.table.base]
            .into_iter()
            .all(|at| self.is_reached(memory, paging, at))
    }

    /// The first entry of the page directory that says something else than was written.
    pub(super) fn changed_entry(&self, memory: &dyn GuestMemory) -> Option<ChangedEntry> {
        self.pages.changed_entry(memory)
    }

    /// The ring, once a detour records.
    pub(super) fn ring(&self) -> Option<Arc<Ring>> {
        self.ring.clone()
    }

    /// Whose exit is at `at`.
    pub(super) fn left_at(&self, at: Gva) -> Option<LeftAt> {
        self.detours.left_at(at)
    }

    /// Whether this guest-physical address is one that the guest may only read.
    pub(super) fn holds(&self, gpa: Gpa) -> bool {
        self.pages.is_read_only(gpa)
    }

    /// The kernel's page tables are again what they were.
    pub(super) fn unmap(&mut self, memory: &dyn GuestMemory) -> Result<(), GuestError> {
        self.pages.unmap(memory)
    }
}
