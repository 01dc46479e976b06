//! The detour region: memory of ours that the guest's kernel can execute, and the copies of instructions in it.
//!
//! ```text
//!  probed text                      kernel's page tables            guest-physical, above RAM
//!  ┌───────────────┐                PD of the text's gigabyte       ┌──────────────────────┐ ◀ read-only slot
//!  │ .. [ee] c3 .. │ exit           │ text  text │                  │ copy: 0f 31 e9 .. .. │
//!  └───────────────┘  │             │ 0 ──▶ ours ─────────┐         │ copy: ..             │
//!          ▲          │ RIP := copy └────────────┘        └───────▶ ├──────────────────────┤ ◀ writable slot
//!          │          ▼                                             │                      │
//!          └── jmp ── rdtsc                                         │ cells                │
//!                                                                   └──────────────────────┘
//! ```
//!
//! Beside the copies lie the detours of optimised probes (`code`), which count in cells that the guest can write, or leave
//! records in a ring there.
//!
//! Threads: a vCPU that stands at a plant looks a copy up under a read lock that is never held while its holder waits; what
//! is laid and copied changes with the other vCPUs paused. Whatever the guest may once have executed stays as it is until
//! the guest ends. `docs/detours.md` has the reasons.

mod cells;
#[cfg(test)]
mod churn;
mod code;
mod copies;
mod jumped;
mod made;
mod pages;
mod place;
mod region;
mod ring;
mod switch;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use arc_swap::{ArcSwapOption, Guard};
use introspect::insn::Decoded;
use introspect::{Gpa, Gva, KernelInt3, PagingState};

use crate::guest::{GuestError, GuestMemory, Paused};
use crate::plant::Jump;
use region::Region;
use switch::LeadsTo;

pub(crate) use cells::Words;
pub(crate) use code::{NotKept, Processor};
pub(crate) use jumped::{Jumped, Lead};
pub(crate) use made::{Keeps, LeftAt, MadeDetour, Part, Use};
pub(crate) use pages::ChangedEntry;
#[cfg(test)]
pub(crate) use ring::{
    FIRST as RING_FIRST, HEAD as RING_HEAD, LIMIT as RING_LIMIT, TAIL as RING_TAIL,
};
pub(crate) use ring::{Record, Ring};

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DetourError {
    /// The kernel's page tables have no room.
    #[error("no entry of the kernel's page tables is free near its text")]
    NoPlace,
    /// The kernel's page tables cannot be followed.
    #[error("the kernel's text is not mapped")]
    NotMapped,
    /// The region has as many pages as it may have, and no room on them.
    #[error(
        "the detour region is full: a guest has at most {} pages of 2 MiB for detours",
        pages::MAX_PAGES
    )]
    Full,
    /// Probes, or their filters, have changed there again and again.
    #[error(
        "as many detours as one place may have were made here, and they stay until the guest ends"
    )]
    TooManyHere,
    /// The original is too far away to jump back to.
    #[error("the region is too far from the instruction")]
    TooFar,
    /// The kernel does not say where something is that a detour needs.
    #[error(transparent)]
    NotKept(NotKept),
    /// The jump in the kernel's handler of `int3` would change the instruction that a vCPU executes next.
    #[error(
        "a vCPU may be between the instructions where the kernel's handler of int3 is to be led on"
    )]
    HandlerInUse,
    /// The guest has changed its page tables.
    #[error("the guest has changed an entry of its page tables that leads to the detour region")]
    Lost,
    /// Another kernel runs now.
    #[error("the kernel that the detour region was made for has handed over to another one")]
    HandedOver,
    /// The machine.
    #[error(transparent)]
    Guest(#[from] GuestError),
}

/// Where the guest's kernel is.
#[derive(Clone, Debug)]
pub(crate) struct KernelSpace {
    /// Its own page tables.
    pub(crate) paging: PagingState,
    /// Its image, from the first byte to the last, as it runs.
    pub(crate) image: Range<Gva>,
}

/// Whether a vCPU may be on its way from an `int3` of ours to the guest's own handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandedOn {
    /// None is.
    No,
    /// One may be: its hit has not been counted.
    Maybe,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has needed it.
    #[default]
    NotLaid,
    Laid(Box<Region>),
    /// This guest has no place for it.
    Refused,
    /// The guest has changed an entry that leads there. No jump leads there any more; it stays as it is, for the threads
    /// that are in it.
    Lost(Box<Region>),
    /// The kernel has handed over to another one: no entry leads there.
    HandedOver,
}

impl State {
    /// The region, which is laid if it can be and has not been.
    fn laid(
        &mut self,
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
    ) -> Result<Option<&mut Region>, DetourError> {
        if let Self::NotLaid = self {
            *self = match Region::lay(paused, memory, kernel) {
                Ok(region) => Self::Laid(Box::new(region)),
                Err(error) => {
                    *self = Self::Refused;
                    return Err(error);
                }
            };
        }
        Ok(match self {
            Self::Laid(region) => Some(region),
            Self::NotLaid | Self::Refused => None,
            Self::Lost(_) => return Err(DetourError::Lost),
            Self::HandedOver => return Err(DetourError::HandedOver),
        })
    }

    /// The region, if threads of the guest may be in it.
    fn region(&self) -> Option<&Region> {
        match self {
            Self::Laid(region) | Self::Lost(region) => Some(region),
            Self::NotLaid | Self::Refused | Self::HandedOver => None,
        }
    }

    fn region_mut(&mut self) -> Option<&mut Region> {
        match self {
            Self::Laid(region) | Self::Lost(region) => Some(region),
            Self::NotLaid | Self::Refused | Self::HandedOver => None,
        }
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Detour {
    state: RwLock<State>,
    told_full: AtomicBool,
    /// Writes of the guest to what it may only read.
    writes: AtomicU64,
    /// That of the region, for those who must not wait.
    ring: ArcSwapOption<Ring>,
    /// The kernel's page tables, once there are detours; for those who must not wait.
    paging: ArcSwapOption<PagingState>,
}

impl Detour {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the copy of `decoded` is, if there is one and a vCPU that translates addresses by `paging` gets there.
    pub(crate) fn copy_of(
        &self,
        memory: &dyn GuestMemory,
        paging: &PagingState,
        decoded: &Decoded,
    ) -> Option<Gva> {
        let state = self.read();
        let State::Laid(region) = &*state else {
            return None;
        };
        let copy = region.copy_of(decoded)?;
        region.is_reached(memory, paging, copy).then_some(copy)
    }

    /// Makes a copy of `decoded`, and lays the region for it if need be.
    ///
    /// # Errors
    ///
    /// When there is no room; the instruction has to be run in place then.
    pub(crate) fn prepare(
        &self,
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
        decoded: &Decoded,
    ) -> Result<(), DetourError> {
        match self.write().laid(paused, memory, kernel)? {
            Some(region) => region.copy(memory, decoded),
            None => Ok(()),
        }
    }

    /// The number of the part for `usage` that detours at `site` have, if it has been made.
    pub(crate) fn part(&self, site: Gva, usage: &Use) -> Option<u32> {
        self.read().region()?.part(site, usage)
    }

    /// A detour for a jump in the place of instructions, with a part for each of `uses`, in order; it is made if there is none
    /// yet.
    ///
    /// # Errors
    ///
    /// When there is no room for it, or no way there.
    pub(crate) fn make(
        &self,
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
        jumped: &Jumped,
        uses: &[Use],
    ) -> Result<MadeDetour, DetourError> {
        let mut state = self.write();
        let region = state.laid(paused, memory, kernel)?;
        let region = region.ok_or(DetourError::NoPlace)?;
        let made = region.make(memory, jumped, uses)?;
        self.ring.store(region.ring());
        self.paging.store(Some(Arc::new(region.kernel().paging)));
        Ok(made)
    }

    /// The `int3` at `site` is to lead to `to`, a detour that has been made; `int3` is how the kernel handles it. The first
    /// time, `open` puts the jump into the kernel's handler, between whose instructions under it no vCPU is then.
    ///
    /// # Errors
    ///
    /// When there is no room, or the handler cannot be led here; then nothing has changed that the guest could see.
    pub(crate) fn lead(
        &self,
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        int3: &KernelInt3,
        site: Gva,
        to: Gva,
        open: impl FnOnce(Gva, Jump) -> Result<(), DetourError>,
    ) -> Result<(), DetourError> {
        let mut state = self.write();
        let State::Laid(region) = &mut *state else {
            return Err(DetourError::NoPlace);
        };
        // The second of the instructions under the jump; an NMI may have come there, too.
        let middle = int3.first[1].at();
        region.lead(memory, int3, site, to, |at, jump| {
            if paused.is_in_nmi() || paused.vcpu_rips().contains(&middle) {
                return Err(DetourError::HandlerInUse);
            }
            open(at, jump)
        })
    }

    /// The `int3` at `site`, if one has led to a detour, does so no more: a vCPU that has executed it goes back there.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
    pub(crate) fn end_lead(&self, site: Gva) -> Result<(), DetourError> {
        match self.write().region_mut() {
            Some(region) => region.set_lead(site, LeadsTo::Back),
            None => Ok(()),
        }
    }

    /// Whether an `int3` of the guest's own at `site`, which memory does not show, would be taken for one of ours.
    pub(crate) fn sends_back(&self, site: Gva) -> bool {
        let state = self.read();
        let switch = state.region().and_then(Region::switch);
        switch.is_some_and(|switch| switch.sends_back(site))
    }

    /// The `int3` at `site` is the guest's own from now on. A vCPU that has executed one of ours, and is still on its way to
    /// the table, is taken for one that has executed the guest's.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
    pub(crate) fn hand_on(&self, paused: &dyn Paused, site: Gva) -> Result<HandedOn, DetourError> {
        let mut state = self.write();
        let Some(region) = state.region_mut() else {
            return Ok(HandedOn::No);
        };
        let known = region.switch().filter(|switch| switch.sends_back(site));
        let Some(switch) = known else {
            return Ok(HandedOn::No);
        };
        // An NMI may have come on the way.
        let is_under_way = |rip: &Gva| switch.is_before_lookup(*rip);
        let may_be = paused.is_in_nmi() || paused.vcpu_rips().iter().any(is_under_way);
        region.set_lead(site, LeadsTo::Handler)?;
        Ok(if may_be {
            HandedOn::Maybe
        } else {
            HandedOn::No
        })
    }

    /// The ring, if a detour records. Nobody is waited for.
    pub(crate) fn ring(&self) -> Guard<Option<Arc<Ring>>> {
        self.ring.load()
    }

    /// The kernel's page tables, once there are detours. Nobody is waited for.
    pub(crate) fn paging(&self) -> Option<PagingState> {
        self.paging.load().as_deref().copied()
    }

    /// Where a vCPU belongs that has executed a plant's byte in a detour.
    pub(crate) fn left_at(&self, rip: Gva) -> Option<LeftAt> {
        self.read().region()?.left_at(rip)
    }

    /// Where the kernel was when the region was laid, if it is.
    pub(crate) fn kernel(&self) -> Option<KernelSpace> {
        self.read().region().map(|region| region.kernel().clone())
    }

    /// Whether it is worth telling the user of this error: once for each kind.
    pub(crate) fn is_news(&self, error: &DetourError) -> bool {
        match error {
            DetourError::Full => !self.told_full.swap(true, Ordering::Relaxed),
            DetourError::TooFar
            | DetourError::TooManyHere
            | DetourError::NotKept(_)
            | DetourError::HandlerInUse
            | DetourError::Lost
            | DetourError::HandedOver => false,
            // The region is refused for good.
            DetourError::NoPlace | DetourError::NotMapped | DetourError::Guest(_) => true,
        }
    }

    /// The guest writes to this address: how often it has written to the region, if it is in there.
    pub(crate) fn count_write(&self, gpa: Gpa) -> Option<u64> {
        let state = self.read();
        let is_there = state.region().is_some_and(|region| region.holds(gpa));
        is_there.then(|| self.writes.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Whether the region is laid.
    pub(crate) fn is_laid(&self) -> bool {
        matches!(&*self.read(), State::Laid(_))
    }

    /// The entry that leads to the region and says something else than was written there, if one does.
    pub(crate) fn changed_entry(&self, memory: &dyn GuestMemory) -> Option<ChangedEntry> {
        match &*self.read() {
            State::Laid(region) => region.changed_entry(memory),
            State::NotLaid | State::Refused | State::Lost(_) | State::HandedOver => None,
        }
    }

    /// No jump is to lead to the region any more. Says whether the kernel's handler of `int3` may be led to the switch
    /// still.
    pub(crate) fn lose(&self, memory: &dyn GuestMemory) -> bool {
        let mut state = self.write();
        *state = match std::mem::take(&mut *state) {
            State::Laid(region) => State::Lost(region),
            other => other,
        };
        let region = state.region();
        region.is_some_and(|region| region.is_switch_reached(memory))
    }

    /// The kernel hands over to another one: its page tables are again what they were, and no vCPU gets to the region. No
    /// other region is laid.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
    pub(crate) fn hand_over(&self, memory: &dyn GuestMemory) -> Result<(), DetourError> {
        let mut state = self.write();
        if let Some(region) = state.region_mut() {
            region.unmap(memory)?;
        }
        *state = State::HandedOver;
        self.ring.store(None);
        self.paging.store(None);
        Ok(())
    }
}
