//! The region: the pages of code, counters, table and ring, and the copies and detours on them.

use std::sync::Arc;

use address::{Gpa, Gva};
use introspect::insn::Decoded;
use introspect::{KernelInt3, PagingState};
use text::{GuestError, GuestMemory, Jump, Paused};

use super::cells::Cells;
use super::copies::{Copies, NewCopy};
use super::jumped::Jumped;
use super::laid::{AllLaid, Laid};
use super::made::{Detours, LeftAt, MadeDetour, Use};
use super::pages::{ChangedEntry, Page, PageKind, Pages};
use super::place::REGION_BYTES as PAGE_BYTES;
use super::ring::Ring;
use super::switch::{LeadsTo, Switch};
use super::{DetourError, KernelSpace};

/// The byte that fills pages without code.
const FILLER: u8 = 0xcc;
/// Code begins at multiples of this number of bytes.
const ALIGNMENT: usize = 16;

/// The detour region of a running kernel.
#[derive(Debug)]
pub(super) struct Region {
    pages: Pages,
    code: FreeCode,
    copies: Copies,
    detours: Detours,
    laid: AllLaid,
    /// The free counters, once a detour counts.
    cells: Cells,
    /// The ring, once a detour records.
    ring: Option<Arc<Ring>>,
    /// The switch, once an `int3` redirects to a detour, or a redirect was tried.
    int3: Option<Int3Lead>,
}

/// The free part of the last page of code.
#[derive(Clone, Copy, Debug)]
struct FreeCode {
    page: Page,
    from: usize,
}

/// The switch, and the page of its table.
#[derive(Debug)]
struct Int3Lead {
    switch: Switch,
    table: Page,
    /// Whether the kernel's handler jumps to the switch.
    is_open: bool,
}

fn page_bytes() -> usize {
    usize::try_from(PAGE_BYTES).unwrap_or(0)
}

impl FreeCode {
    /// All of a page that has just been mapped.
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
    /// Finds a free address, fills a page with code, and only then fills the entry of the kernel's page directory.
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
            laid: AllLaid::default(),
            cells: Cells::default(),
            ring: None,
            int3: None,
        })
    }

    fn map_code(pages: &mut Pages, memory: &dyn GuestMemory) -> Result<Page, DetourError> {
        pages.map(memory, PageKind::Code, &vec![FILLER; page_bytes()])
    }

    /// The address of `bytes` free bytes of code; on a new page, if the last one is full.
    fn room_for(&mut self, memory: &dyn GuestMemory, bytes: usize) -> Result<Gva, DetourError> {
        if bytes > page_bytes() {
            return Err(DetourError::Full);
        }
        if !self.code.has_room(bytes) {
            self.code = FreeCode::on(Self::map_code(&mut self.pages, memory)?);
        }
        Ok(self.code.at())
    }

    /// Writes code at the address returned by [`room_for`](Self::room_for). The code stays.
    fn write_code(&mut self, code: &[u8]) -> Result<(), DetourError> {
        let FreeCode { page, from } = self.code;
        self.pages.write(page, from, code)?;
        let end = (from + code.len()).next_multiple_of(ALIGNMENT);
        self.code.from = end.min(page_bytes());
        Ok(())
    }

    /// Reads the region's bytes; see [`Pages::read`].
    pub(super) fn read(&self, at: Gva, buf: &mut [u8]) -> Option<()> {
        self.pages.read(at, buf)
    }

    /// The guest's kernel at the creation of the region, or after [`settle`](Self::settle).
    pub(super) fn kernel(&self) -> &KernelSpace {
        &self.pages.kernel
    }

    /// Notes that the kernel has set its page tables up.
    pub(super) fn settle(&mut self, memory: &dyn GuestMemory, kernel: &KernelSpace) {
        self.pages.settle(memory, kernel);
    }

    /// Whether `paging` maps the region's page at `at`.
    pub(super) fn is_reached(
        &self,
        memory: &dyn GuestMemory,
        paging: &PagingState,
        at: Gva,
    ) -> bool {
        self.pages.is_reached(memory, paging, at)
    }

    /// The copy of `decoded`, if any.
    pub(super) fn copy_of(&self, decoded: &Decoded) -> Option<Gva> {
        self.copies.of(decoded)
    }

    /// Makes a copy of `decoded`, unless there is a copy already.
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
        self.laid.keep(Laid::copy(decoded, at, copy.bytes().len()));
        Ok(())
    }

    /// The number of the part for `usage` at `site`, if made.
    pub(super) fn part(&self, site: Gva, usage: &Use) -> Option<u32> {
        self.detours.part(site, usage).map(|part| part.part_number)
    }

    /// The detour for `jumped` and `uses`. A missing detour is made.
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
        // Counters and part numbers stay allocated only if the detour is written.
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
            // The detour is on a new page.
            new = Detours::assemble(jumped, uses, new.detour.parts, at, ring)?;
        }
        self.write_code(&new.code.bytes)?;
        self.cells = cells;
        let (len, displaced) = (new.code.bytes.len(), new.code.displaced);
        self.laid.keep(Laid::detour(jumped, at, len, displaced));
        Ok(self.detours.keep(new, jumped, uses))
    }

    /// Maps a new page for counters.
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

    /// Sets the target of the `int3` at `site` to `to`; `int3` describes the kernel's handler. If the kernel's handler is not
    /// redirected yet, `open` writes a jump to the switch, at the given address.
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

    /// Changes the target of the `int3` at `site`, if the `int3` has ever redirected to a detour.
    pub(super) fn set_lead(&mut self, site: Gva, to: LeadsTo) -> Result<(), DetourError> {
        if let Some(lead) = &mut self.int3
            && let Some(place) = lead.switch.lead(site, to)?
        {
            self.pages.write(lead.table, place.offset, &place.bytes)?;
        }
        Ok(())
    }

    /// The switch, if an `int3` redirects to a detour, or has done so.
    pub(super) fn switch(&self) -> Option<&Switch> {
        self.int3.as_ref().map(|lead| &lead.switch)
    }

    /// Whether the kernel's handler of `int3` jumps to code and table that are still mapped as before.
    pub(super) fn is_switch_reached(&self, memory: &dyn GuestMemory) -> bool {
        let Some(lead) = &self.int3 else { return false };
        let paging = &self.pages.kernel.paging;
        [lead.switch.entry(), lead.table.base]
            .into_iter()
            .all(|at| self.is_reached(memory, paging, at))
    }

    /// The first entry of the page directory whose value differs from the value written by hyprobe.
    pub(super) fn changed_entry(&self, memory: &dyn GuestMemory) -> Option<ChangedEntry> {
        self.pages.changed_entry(memory)
    }

    /// The ring, once a detour records.
    pub(super) fn ring(&self) -> Option<Arc<Ring>> {
        self.ring.clone()
    }

    /// The part whose exit is at `at`.
    pub(super) fn left_at(&self, at: Gva) -> Option<LeftAt> {
        self.detours.left_at(at)
    }

    /// Whether a page of the region is at `at`.
    pub(super) fn maps(&self, at: Gva) -> bool {
        self.pages.maps(at)
    }

    /// The detour or copy that holds `at`.
    pub(super) fn laid_at(&self, at: Gva) -> Option<Laid> {
        self.laid.holding(at)
    }

    /// Whether `gpa` is a read-only address of the region.
    pub(super) fn holds(&self, gpa: Gpa) -> bool {
        self.pages.is_read_only(gpa)
    }

    /// Zeroes the region's entries of the kernel's page directory.
    pub(super) fn unmap(&mut self, memory: &dyn GuestMemory) -> Result<(), GuestError> {
        self.pages.unmap(memory)
    }
}
