//! The detour region of a guest, for all threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use address::{Gpa, Gva};
use arc_swap::{ArcSwapOption, Guard};
use introspect::insn::Decoded;
use introspect::orc::Displaced;
use introspect::{KernelInt3, PagingState};
use text::{GuestMemory, Jump, Paused};

use crate::jumped::Jumped;
use crate::laid::Laid;
use crate::made::{LeftAt, MadeDetour, Use};
use crate::pages::ChangedEntry;
use crate::place;
use crate::region::Region;
use crate::ring::Ring;
use crate::switch::LeadsTo;
use crate::{DetourError, KernelSpace, Tables};

/// Whether a vCPU may be between an injected `int3` and the guest's own handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedOn {
    /// No vCPU is.
    No,
    /// A vCPU may be: its hit has not been counted.
    Maybe,
}

#[derive(Debug, Default)]
enum State {
    /// No probe has needed the region yet.
    #[default]
    NotLaid,
    Laid(Box<Region>),
    /// The region cannot be created in the guest.
    Refused,
    /// The guest has changed an entry of the region. No jump targets the region any more; its code stays, for the threads inside.
    Lost(Box<Region>),
    /// The kernel has handed over to another kernel: no entry maps the region.
    HandedOver,
}

impl State {
    /// The region; the first call creates the region if possible.
    fn laid(
        &mut self,
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        kernel: &KernelSpace,
    ) -> Result<Option<&mut Region>, DetourError> {
        if let Self::NotLaid = self {
            *self = match Region::lay(paused, memory, kernel) {
                Ok(region) => Self::Laid(Box::new(region)),
                // An early region without room may have room after the kernel has set its tables up.
                Err(error) if kernel.tables == Tables::Early => return Err(error),
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

    /// The region, if threads of the guest may be inside.
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

/// The detour region of a guest, shared by all threads.
#[derive(Debug, Default)]
pub struct Detour {
    state: RwLock<State>,
    told_full: AtomicBool,
    /// The number of guest writes to read-only pages.
    writes: AtomicU64,
    /// The region's ring, for threads that must not wait.
    ring: ArcSwapOption<Ring>,
    /// The kernel's page tables, once there are detours; for threads that must not wait.
    paging: ArcSwapOption<PagingState>,
}

impl Detour {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of the copy of `decoded`, if there is a copy and `paging` maps it.
    pub fn copy_of(
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

    /// Makes a copy of `decoded`, and creates the region if need be.
    ///
    /// # Errors
    ///
    /// If there is no room; the instruction has to be executed in place then.
    pub fn prepare(
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

    /// The number of the part for `usage` in detours at `site`, if made.
    pub fn part(&self, site: Gva, usage: &Use) -> Option<u32> {
        self.read().region()?.part(site, usage)
    }

    /// The detour for `jumped`, with a part for each of `uses`, in order. A missing detour is made.
    ///
    /// # Errors
    ///
    /// If the region has no room for the detour, or a jump cannot reach the detour.
    pub fn make(
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
        self.store_paging(region.kernel());
        Ok(made)
    }

    /// Stores settled tables only: the early tables map less than the kernel will use.
    fn store_paging(&self, kernel: &KernelSpace) {
        if kernel.tables == Tables::Settled {
            self.paging.store(Some(Arc::new(kernel.paging)));
        }
    }

    /// Notes that the kernel has set its page tables up. If there is a region, further pages are mapped in `kernel`'s tables.
    pub fn settle(&self, memory: &dyn GuestMemory, kernel: &KernelSpace) {
        if let Some(region) = self.write().region_mut() {
            region.settle(memory, kernel);
            self.store_paging(kernel);
        }
    }

    /// Whether all entries for an early region are free, both in the vCPU's current tables and in the kernel's future tables, and
    /// whether both tables share the entries.
    pub fn has_early_place(
        memory: &dyn GuestMemory,
        running: &PagingState,
        kernel: &PagingState,
    ) -> bool {
        place::early().all(|at| {
            let entry = |paging| introspect::entry_at(memory, paging, at, introspect::Level::Pd);
            let entries = entry(running).ok().zip(entry(kernel).ok());
            entries.is_some_and(|(one, other)| one.gpa == other.gpa && one.value == 0)
        })
    }

    /// Sets the target of the `int3` at `site` to the detour `to`; `int3` describes the kernel's handler. The first time, `open`
    /// writes the jump into the kernel's handler, with no vCPU between the displaced instructions.
    ///
    /// # Errors
    ///
    /// If there is no room, or the handler cannot be redirected; then no change is visible to the guest.
    pub fn lead(
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
        // The second of the displaced instructions; an NMI may have interrupted a vCPU there, too.
        let middle = int3.first[1].at();
        region.lead(memory, int3, site, to, |at, jump| {
            if paused.is_in_nmi() || paused.vcpu_rips().contains(&middle) {
                return Err(DetourError::HandlerInUse);
            }
            open(at, jump)
        })
    }

    /// Ends the redirect of the `int3` at `site`, if any: a vCPU that has executed the `int3` returns to the site.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub fn end_lead(&self, site: Gva) -> Result<(), DetourError> {
        match self.write().region_mut() {
            Some(region) => region.set_lead(site, LeadsTo::Back),
            None => Ok(()),
        }
    }

    /// Whether the switch would mistake an `int3` of the guest's own at `site`, hidden in memory, for an injected `int3`.
    pub fn sends_back(&self, site: Gva) -> bool {
        let state = self.read();
        let switch = state.region().and_then(Region::switch);
        switch.is_some_and(|switch| switch.sends_back(site))
    }

    /// Gives the `int3` at `site` to the guest from now on. If a vCPU has executed an injected `int3` and not reached the lookup
    /// yet, the kernel's handler treats the `int3` as the guest's own.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub fn hand_on(&self, paused: &dyn Paused, site: Gva) -> Result<HandedOn, DetourError> {
        let mut state = self.write();
        let Some(region) = state.region_mut() else {
            return Ok(HandedOn::No);
        };
        let known = region.switch().filter(|switch| switch.sends_back(site));
        let Some(switch) = known else {
            return Ok(HandedOn::No);
        };
        // An NMI may have interrupted a vCPU between the `int3` and the lookup.
        let is_under_way = |rip: &Gva| switch.is_before_lookup(*rip);
        let may_be = paused.is_in_nmi() || paused.vcpu_rips().iter().any(is_under_way);
        region.set_lead(site, LeadsTo::Handler)?;
        Ok(if may_be {
            HandedOn::Maybe
        } else {
            HandedOn::No
        })
    }

    /// The ring, if a detour records. The call never waits.
    pub fn ring(&self) -> Guard<Option<Arc<Ring>>> {
        self.ring.load()
    }

    /// The kernel's page tables, once there are detours. The call never waits.
    pub fn paging(&self) -> Option<PagingState> {
        self.paging.load().as_deref().copied()
    }

    /// The part whose exit byte a vCPU has executed at `rip`.
    pub fn left_at(&self, rip: Gva) -> Option<LeftAt> {
        self.read().region()?.left_at(rip)
    }

    /// Whether the region has a page at `at`.
    pub fn maps(&self, at: Gva) -> bool {
        self.read().region().is_some_and(|region| region.maps(at))
    }

    /// Reads the region's bytes from `at` on. `None` if the region has no page there.
    pub fn read_at(&self, at: Gva, buf: &mut [u8]) -> Option<()> {
        self.read().region()?.read(at, buf)
    }

    /// Whether a vCPU at `rip` is on its way to a detour: between an `int3` and the lookup of its site.
    pub fn is_before_lookup(&self, rip: Gva) -> bool {
        let state = self.read();
        let switch = state.region().and_then(|region| region.switch());
        switch.is_some_and(|switch| switch.is_before_lookup(rip))
    }

    /// The detour or copy that holds `at`.
    pub fn laid_at(&self, at: Gva) -> Option<Laid> {
        self.read().region()?.laid_at(at)
    }

    /// Whether the instruction at `at` is a detour's own: work for probes, and no copy of an instruction of the guest.
    pub fn is_own(&self, at: Gva) -> bool {
        self.laid_at(at).is_some_and(|laid| laid.is_in_front(at))
    }

    /// The original instruction that the instruction at `at`, in a detour or a copy, stands for. The code is read from the region's own memory:
    /// the guest's RAM does not hold the region.
    pub fn displaced_at(&self, at: Gva) -> Option<Displaced> {
        let state = self.read();
        let region = state.region()?;
        let laid = region.laid_at(at)?;
        // A detour or a copy lies within one page of the region.
        let mut code = vec![0; laid.len];
        region.read(laid.entry, &mut code)?;
        laid.displaced_at(&code, at)
    }

    /// The guest's kernel at the creation of the region, or after [`settle`](Self::settle), if there is a region.
    pub fn kernel(&self) -> Option<KernelSpace> {
        self.read().region().map(|region| region.kernel().clone())
    }

    /// Whether to report the error to the user: once for each kind.
    pub fn is_news(&self, error: &DetourError) -> bool {
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

    /// Counts a guest write to `gpa`, if the address is in the region. Returns the number of writes to the region.
    pub fn count_write(&self, gpa: Gpa) -> Option<u64> {
        let state = self.read();
        let is_there = state.region().is_some_and(|region| region.holds(gpa));
        is_there.then(|| self.writes.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Whether there is a region in use.
    pub fn is_laid(&self) -> bool {
        matches!(&*self.read(), State::Laid(_))
    }

    /// The first entry of the region whose value differs from the value written, if any.
    pub fn changed_entry(&self, memory: &dyn GuestMemory) -> Option<ChangedEntry> {
        match &*self.read() {
            State::Laid(region) => region.changed_entry(memory),
            State::NotLaid | State::Refused | State::Lost(_) | State::HandedOver => None,
        }
    }

    /// Gives the region up: no jump may target the region any more. Returns whether the jump from the kernel's handler of `int3`
    /// to the switch may stay.
    pub fn lose(&self, memory: &dyn GuestMemory) -> bool {
        let mut state = self.write();
        *state = match std::mem::take(&mut *state) {
            State::Laid(region) => State::Lost(region),
            other => other,
        };
        let region = state.region();
        region.is_some_and(|region| region.is_switch_reached(memory))
    }

    /// Restores the kernel's page tables before the kernel hands over to another: no vCPU reaches the region. No second region is
    /// created.
    ///
    /// # Errors
    ///
    /// If memory cannot be written.
    pub fn hand_over(&self, memory: &dyn GuestMemory) -> Result<(), DetourError> {
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
