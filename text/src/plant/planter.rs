//! The planter: all plants of a guest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, PAGE_BYTES, PAGE_LEN};
use arc_swap::Guard;
use introspect::{PhysMemory, Unreadable};
use vmm::PageRange;

use super::loose_stops::LooseStops;
use super::page::{Jump, Mark, Page, offset};
use super::page_copies::{PageCopies, Pages};
use super::rewritten_jumps::RewrittenJumps;
use super::{PlantByte, Spot};
use crate::guest::{GuestError, GuestMemory, Paused, Unwritable};

/// The result of a guest write to a read-only page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The page has plants; the write has been merged with them.
    Merged,
    /// The page has no plants (any more); no byte has been written.
    NotOurs,
}

/// A failed change of plants; all bytes are as before.
#[derive(Debug, thiserror::Error)]
#[error("cannot plant at {gpa}")]
pub struct PlantError {
    /// The first address that failed.
    gpa: Gpa,
    /// The cause.
    #[source]
    source: GuestError,
}

/// The owner of all plants.
///
/// Changes ([`change`](Self::change), [`show_alone`](Self::show_alone)) need the vCPUs paused. Any vCPU's thread may call all other
/// functions at any time.
#[derive(Debug)]
pub struct Planter {
    pub(super) memory: Arc<dyn GuestMemory>,
    byte: PlantByte,
    /// Stops on pages without a copy of their original bytes.
    pub(super) loose: LooseStops,
    /// The number of plants missing in memory because a vCPU that runs alone is to execute the original byte.
    pub(super) open: AtomicUsize,
    /// The planter reads the pages at every guest write and every memory access of the emulator, without a lock.
    pub(super) pages: PageCopies,
    /// Locked during a change of plants.
    plants: Mutex<Plants>,
    rewritten: RewrittenJumps,
}

#[derive(Debug, Default)]
struct Plants {
    /// The plants by address, with the length of the instruction.
    places: HashMap<Gpa, (Spot, usize)>,
    /// The number of plants on each page.
    uses: BTreeMap<u64, usize>,
    /// Pages that are read-only only because of their plants.
    singly: BTreeSet<u64>,
    /// Pages that are read-only with or without plants.
    protected: Option<PageRange>,
}

impl Plants {
    /// Updates the page counts for a plant added or removed.
    fn count(&mut self, spot: Spot, len: usize, planted: bool) {
        for page in spot.pages(len) {
            let uses = self.uses.entry(page.0).or_default();
            *uses = if planted {
                *uses + 1
            } else {
                uses.saturating_sub(1)
            };
            if *uses == 0 {
                self.uses.remove(&page.0);
                self.singly.remove(&page.0);
            } else if !self.is_protected(page.0) {
                self.singly.insert(page.0);
            }
        }
    }

    fn is_protected(&self, page: u64) -> bool {
        self.protected
            .is_some_and(|range| (range.start.0..range.end.0).contains(&page))
    }

    /// The pages that must be read-only, as sorted, merged ranges.
    fn read_only(&self) -> Vec<PageRange> {
        ranges(self.singly.iter().copied(), self.protected)
    }

    /// Sets the plant at `gpa`, or removes it. Returns the previous plant.
    fn replace(&mut self, gpa: Gpa, place: Option<(Spot, usize)>) -> Option<(Spot, usize)> {
        let before = match place {
            Some(place) => self.places.insert(gpa, place),
            None => self.places.remove(&gpa),
        };
        if let Some((spot, len)) = place {
            self.count(spot, len, true);
        }
        if let Some((spot, len)) = before {
            self.count(spot, len, false);
        }
        before
    }
}

impl PhysMemory for Planter {
    /// Reads the guest's original bytes.
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.read_own(gpa, buf)
    }
}

impl std::fmt::Debug for dyn GuestMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GuestMemory")
    }
}

impl Planter {
    /// A planter of `memory` without plants; the plants will be `byte`.
    pub fn new(memory: Arc<dyn GuestMemory>, byte: PlantByte) -> Self {
        Self {
            memory,
            byte,
            loose: LooseStops::default(),
            open: AtomicUsize::new(0),
            pages: PageCopies::default(),
            plants: Mutex::default(),
            rewritten: RewrittenJumps::default(),
        }
    }

    /// The byte of the plants.
    pub fn byte(&self) -> PlantByte {
        self.byte
    }

    /// Memory as the guest's processors see it, plants included.
    pub fn memory(&self) -> &dyn GuestMemory {
        self.memory.as_ref()
    }

    /// The pages with copies of their original bytes.
    pub fn pages(&self) -> &PageCopies {
        &self.pages
    }

    /// The jumps over instructions that handlers have rewritten.
    pub fn rewritten_jumps(&self) -> &RewrittenJumps {
        &self.rewritten
    }

    fn lock(&self) -> MutexGuard<'_, Plants> {
        self.plants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds plants at `add` (with the length of the instruction), and removes the plants at `remove`: all or none.
    ///
    /// # Errors
    ///
    /// If an address is not memory, or the machine refuses the slots; then nothing has changed.
    pub fn change(
        &self,
        paused: &dyn Paused,
        add: &[(Spot, usize)],
        remove: &[Gpa],
    ) -> Result<(), PlantError> {
        let mut plants = self.lock();
        let singly = plants.singly.clone();
        let mut before = Vec::with_capacity(add.len() + remove.len());
        let places = remove
            .iter()
            .map(|gpa| (*gpa, None))
            .chain(add.iter().map(|&(spot, len)| (spot.gpa, Some((spot, len)))));
        for (gpa, place) in places {
            before.push((gpa, plants.replace(gpa, place)));
        }
        match self.change_bytes(paused, &plants, &singly, &before, add) {
            Ok(pages) => {
                self.pages.store(pages);
                Ok(())
            }
            Err(error) => {
                for (gpa, place) in before.into_iter().rev() {
                    plants.replace(gpa, place);
                }
                plants.singly = singly;
                Err(error)
            }
        }
    }

    /// Updates memory to match `plants`; `before` holds the former state of the changed plants. All bytes change, or none.
    fn change_bytes(
        &self,
        paused: &dyn Paused,
        plants: &Plants,
        singly: &BTreeSet<u64>,
        before: &[(Gpa, Option<(Spot, usize)>)],
        add: &[(Spot, usize)],
    ) -> Result<Pages, PlantError> {
        let old = self.pages.load_full();
        let mut new = old.as_ref().clone();
        for &(spot, len) in add {
            // An instruction may begin on one page and end on the next; both pages become read-only.
            for page in spot.pages(len) {
                if !new.contains_key(&page.0) {
                    let captured = Page::capture(self, page);
                    let captured = captured.map_err(|source| PlantError {
                        gpa: spot.gpa,
                        source: source.into(),
                    })?;
                    new.insert_mut(page.0, Arc::new(captured));
                }
            }
        }
        let moved = *singly != plants.singly;
        let at = add.first().map_or(Gpa(0), |(spot, _)| spot.gpa);
        if moved {
            paused
                .set_read_only(&plants.read_only())
                .map_err(|source| PlantError { gpa: at, source })?;
        }
        for (done, (gpa, was)) in before.iter().enumerate() {
            let planted = plants.places.contains_key(gpa);
            if !planted && was.is_none() {
                continue;
            }
            if let Err(source) = self.set(&new, *gpa, planted) {
                for (gpa, was) in before[..done].iter().rev() {
                    // Bytes just written can be written back; otherwise the error below ends the run.
                    let _ = self.set(&new, *gpa, was.is_some());
                }
                if moved {
                    let _ = paused.set_read_only(&ranges(singly.iter().copied(), plants.protected));
                }
                return Err(PlantError {
                    gpa: *gpa,
                    source: source.into(),
                });
            }
        }
        for (spot, len) in before.iter().filter_map(|(_, was)| *was) {
            for page in spot.pages(len) {
                if !plants.uses.contains_key(&page.0) {
                    new.remove_mut(&page.0);
                }
            }
        }
        Ok(new)
    }

    fn set(&self, pages: &Pages, gpa: Gpa, planted: bool) -> Result<(), Unwritable> {
        let page = pages.get(&gpa.page().0);
        let page = page.ok_or(Unwritable { gpa, len: 1 })?;
        self.mark(
            page,
            gpa,
            &[(Mark::Planted, planted), (Mark::Withdrawn, false)],
        )
    }

    /// Shows the original byte at a plant until [`replant`](Self::replant).
    pub fn withdraw(&self, _paused: &dyn Paused, gpa: Gpa) -> Result<(), Unwritable> {
        self.mark(&*self.pages.page(gpa)?, gpa, &[(Mark::Withdrawn, true)])
    }

    /// Ends [`withdraw`](Self::withdraw).
    pub fn replant(&self, _paused: &dyn Paused, gpa: Gpa) -> Result<(), Unwritable> {
        let marks = [(Mark::Planted, true), (Mark::Withdrawn, false)];
        self.mark(&*self.pages.page(gpa)?, gpa, &marks)
    }

    /// Whether the plant at `gpa` is withdrawn, by [`withdraw`](Self::withdraw).
    pub fn is_withdrawn(&self, gpa: Gpa) -> bool {
        self.pages.has(Mark::Withdrawn, gpa)
    }

    pub(super) fn mark(
        &self,
        page: &Page,
        gpa: Gpa,
        marks: &[(Mark, bool)],
    ) -> Result<(), Unwritable> {
        page.mark(self.memory.as_ref(), offset(gpa), self.byte, marks)
    }

    /// Copies the original bytes of the pages of an instruction of `len` bytes, so that a jump can lie there without a plant. The copies
    /// stay until [`release`](Self::release).
    ///
    /// # Errors
    ///
    /// If the address is not memory, or the machine refuses the slots; then nothing has changed.
    pub fn keep(&self, paused: &dyn Paused, spot: Spot, len: usize) -> Result<(), GuestError> {
        let mut plants = self.lock();
        let mut pages = self.pages.load_full().as_ref().clone();
        for page in spot.pages(len) {
            if !pages.contains_key(&page.0) {
                pages.insert_mut(page.0, Arc::new(Page::capture(self, page)?));
            }
        }
        let singly = plants.singly.clone();
        plants.count(spot, len, true);
        if singly != plants.singly
            && let Err(error) = paused.set_read_only(&plants.read_only())
        {
            plants.count(spot, len, false);
            plants.singly = singly;
            return Err(error);
        }
        self.pages.store(pages);
        Ok(())
    }

    /// Ends [`keep`](Self::keep); the jump must be gone.
    pub fn release(&self, spot: Spot, len: usize) {
        let mut plants = self.lock();
        plants.count(spot, len, false);
        let mut pages = self.pages.load_full().as_ref().clone();
        for page in spot.pages(len) {
            if !plants.uses.contains_key(&page.0) {
                pages.remove_mut(&page.0);
            }
        }
        self.pages.store(pages);
    }

    /// Writes a jump at `gpa`, or removes the jump there. The jump lies on one page with a copy of its original bytes, and under no
    /// withdrawn plant.
    ///
    /// # Errors
    ///
    /// If the jump crosses the end of the page or overlaps another jump, or memory cannot be written; then nothing has changed.
    pub fn set_jump(
        &self,
        _paused: &dyn Paused,
        gpa: Gpa,
        jump: Option<Jump>,
    ) -> Result<(), Unwritable> {
        let page = self.pages.page(gpa)?;
        page.set_jump(self.memory.as_ref(), offset(gpa), jump, self.byte)
    }

    /// Whether a guest write of `data` would change the original byte under a plant that memory shows.
    pub fn overwrites_plant(&self, gpa: Gpa, data: &[u8]) -> bool {
        let pages = self.pages.load();
        let (here, beyond) = data.split_at((PAGE_LEN - offset(gpa)).min(data.len()));
        [(gpa, here), (gpa.wrapping_add(here.len() as u64), beyond)]
            .into_iter()
            .any(|(gpa, part)| {
                pages
                    .get(&gpa.page().0)
                    .is_some_and(|page| page.overwrites_plant(offset(gpa), part, self.byte))
            })
    }

    /// Merges a guest write of `data`, at most 8 bytes, to a read-only page.
    pub fn guest_write(&self, gpa: Gpa, data: &[u8]) -> Result<Written, Unwritable> {
        let pages = self.pages.load();
        let (here, beyond) = data.split_at((PAGE_LEN - offset(gpa)).min(data.len()));
        let parts = [(gpa, here), (gpa.wrapping_add(here.len() as u64), beyond)]
            .map(|(gpa, part)| (gpa, part, pages.get(&gpa.page().0)));
        let merged = |(_, part, page): &(Gpa, &[u8], Option<_>)| !part.is_empty() && page.is_some();
        if !parts.iter().any(merged) {
            return Ok(Written::NotOurs);
        }
        for (gpa, part, page) in parts {
            match page {
                _ if part.is_empty() => (),
                Some(page) => {
                    page.guest_write(self.memory.as_ref(), offset(gpa), part, self.byte)?;
                }
                None => self.memory.write(gpa, part)?,
            }
        }
        Ok(Written::Merged)
    }

    /// Writes for a handler, at most 8 bytes within a page, and merges the bytes with plants. Jumps over the bytes must be removed before
    /// the vCPU resumes: [`RewrittenJumps::take`].
    pub fn write_own(&self, gpa: Gpa, data: &[u8]) -> Result<(), Unwritable> {
        if self.pages.overwrites_jump(gpa, data) {
            self.rewritten.add(self.pages.jumps(gpa, data.len()));
        }
        match self.guest_write(gpa, data)? {
            Written::Merged => Ok(()),
            Written::NotOurs => self.memory.write(gpa, data),
        }
    }

    /// Makes these pages read-only with or without plants, so that more plants there need no change of slots.
    ///
    /// # Errors
    ///
    /// When the machine refuses; then nothing has changed.
    pub fn protect(&self, paused: &dyn Paused, pages: PageRange) -> Result<(), GuestError> {
        let mut plants = self.lock();
        let before = plants.protected.replace(pages);
        let singly: BTreeSet<u64> = plants
            .uses
            .keys()
            .copied()
            .filter(|page| !plants.is_protected(*page))
            .collect();
        let set = paused.set_read_only(&ranges(singly.iter().copied(), Some(pages)));
        match set {
            Ok(()) => plants.singly = singly,
            Err(_) => plants.protected = before,
        }
        set
    }

    /// Ends [`protect`](Self::protect): only pages with plants stay read-only.
    ///
    /// # Errors
    ///
    /// When the machine refuses; then nothing has changed.
    pub fn unprotect(&self, paused: &dyn Paused) -> Result<(), GuestError> {
        let mut plants = self.lock();
        let singly: BTreeSet<u64> = plants.uses.keys().copied().collect();
        paused.set_read_only(&ranges(singly.iter().copied(), None))?;
        plants.singly = singly;
        plants.protected = None;
        Ok(())
    }

    /// Reads the guest's original bytes.
    pub fn read_own(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        self.own().read(gpa, buf)
    }

    /// The guest's original bytes, for several reads in a row with one lookup of the pages.
    pub fn own(&self) -> Own<'_> {
        Own {
            planter: self,
            pages: self.pages.load(),
        }
    }
}

/// See [`Planter::own`].
#[derive(Debug)]
pub struct Own<'p> {
    planter: &'p Planter,
    pages: Guard<Arc<Pages>>,
}

impl PhysMemory for Own<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let Planter {
            memory,
            loose,
            byte,
            ..
        } = self.planter;
        match <&mut [u8; 8]>::try_from(&mut *buf) {
            Ok(word) => *word = memory.read_u64(gpa)?.to_le_bytes(),
            Err(_) => memory.read(gpa, buf)?,
        }
        loose.uncover(gpa, buf, byte.value());
        if self.pages.is_empty() {
            return Ok(());
        }
        let mut done = 0;
        while done < buf.len() {
            let at = gpa.wrapping_add(done as u64);
            let here = (PAGE_LEN - offset(at)).min(buf.len() - done);
            if let Some(page) = self.pages.get(&at.page().0) {
                page.read_own(offset(at), &mut buf[done..done + here]);
            }
            done += here;
        }
        Ok(())
    }
}

/// The pages, and the pages that are always read-only, as sorted, merged ranges.
fn ranges(pages: impl Iterator<Item = u64>, protected: Option<PageRange>) -> Vec<PageRange> {
    let mut all: Vec<PageRange> = pages
        .map(|page| PageRange {
            start: Gpa(page),
            end: Gpa(page + PAGE_BYTES),
        })
        .chain(protected)
        .collect();
    all.sort_unstable();
    let mut merged: Vec<PageRange> = Vec::new();
    for range in all {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
