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
//! Threads: a vCPU that stands at a plant looks a copy up under a read lock that nobody holds while he waits; what is
//! laid and copied changes with the other vCPUs paused. `docs/detours.md` has the reasons.

mod cells;
mod code;
mod copies;
mod evacuate;
mod jumped;
mod made;
mod place;
mod region;
mod ring;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use arc_swap::{ArcSwapOption, Guard};
use introspect::insn::Decoded;
use introspect::{Gpa, Gva, PagingState};
use vmm::Pop;

use crate::guest::{GuestError, GuestMemory, Paused};
use region::Region;

pub(crate) use cells::Words;
pub(crate) use code::{NotKept, Processor};
pub(crate) use jumped::Jumped;
pub(crate) use made::{Keeps, LeftAt, MadeDetour, Use};
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
    /// The region has as many copies as it holds.
    #[error("the detour region holds no more than {0} copies")]
    Full(usize),
    /// The region has as many detours as it holds.
    #[error("the detour region holds no more detours")]
    NoMoreDetours,
    /// The original is too far away to jump back to.
    #[error("the region is too far from the instruction")]
    TooFar,
    /// The kernel does not say where something is that a detour needs.
    #[error(transparent)]
    NotKept(NotKept),
    /// A thread is in a detour and cannot be moved.
    #[error("a thread of the guest may be in it")]
    NotLeft,
    /// A vCPU has not yet left the region that was there before.
    #[error("the last region is still being left")]
    BeingLeft,
    /// The machine.
    #[error(transparent)]
    Guest(#[from] GuestError),
}

/// Where a thread goes on that is in code of the region's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WayOut {
    to: Gva,
    /// What it has pushed.
    pops: &'static [Pop],
}

impl WayOut {
    const fn plain(to: Gva) -> Self {
        Self { to, pops: &[] }
    }
}

/// Where the guest's kernel is.
#[derive(Clone, Debug)]
pub(crate) struct KernelSpace {
    /// Its own page tables.
    pub(crate) paging: PagingState,
    /// Its image, from the first byte to the last, as it runs.
    pub(crate) image: Range<Gva>,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has needed it.
    #[default]
    NotLaid,
    Laid(Box<Region>),
    /// This guest has no place for it.
    Refused,
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
            if !paused.vcpus_have_moved() {
                return Err(DetourError::BeingLeft);
            }
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
        })
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
    /// The kernel's page tables, while there are detours; for those who must not wait.
    paging: ArcSwapOption<PagingState>,
    /// Where the region begins for the guest's kernel once there are detours; 0 before.
    code: AtomicU64,
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
        let copy = region.copies.of(decoded)?;
        region.is_reached(memory, paging).then_some(copy)
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
            Some(region) => region.copy(decoded),
            None => Ok(()),
        }
    }

    /// A detour, for a jump in the place of instructions; it is made if there is none yet.
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
        usage: &Use,
    ) -> Result<MadeDetour, DetourError> {
        let mut state = self.write();
        let region = state.laid(paused, memory, kernel)?;
        let region = region.ok_or(DetourError::NoPlace)?;
        if !region.is_reached(memory, &kernel.paging) {
            return Err(DetourError::NotMapped);
        }
        let made = region.make(memory, kernel, jumped, usage)?;
        self.ring.store(region.ring());
        self.paging.store(Some(Arc::new(region.kernel.paging)));
        self.code.store(region.code().start, Ordering::Release);
        Ok(made)
    }

    /// The ring, if a detour records. Nobody is waited for.
    pub(crate) fn ring(&self) -> Guard<Option<Arc<Ring>>> {
        self.ring.load()
    }

    /// The kernel's page tables, while there are detours. Nobody is waited for.
    pub(crate) fn paging(&self) -> Option<PagingState> {
        self.paging.load().as_deref().copied()
    }

    /// Where a vCPU belongs that has executed a plant's byte in a detour.
    pub(crate) fn left_at(&self, rip: Gva) -> Option<LeftAt> {
        let code = self.code.load(Ordering::Acquire);
        if code == 0 || !region::holds(code, rip) {
            return None;
        }
        match &*self.read() {
            State::Laid(region) => region.left_at(rip),
            State::NotLaid | State::Refused => None,
        }
    }

    /// Where the kernel was when the region was laid, if it is.
    pub(crate) fn kernel(&self) -> Option<KernelSpace> {
        match &*self.read() {
            State::Laid(region) => Some(region.kernel.clone()),
            State::NotLaid | State::Refused => None,
        }
    }

    /// Whether it is worth telling the user of this error: once for each kind.
    pub(crate) fn is_news(&self, error: &DetourError) -> bool {
        match error {
            DetourError::Full(_) => !self.told_full.swap(true, Ordering::Relaxed),
            DetourError::TooFar
            | DetourError::BeingLeft
            | DetourError::NoMoreDetours
            | DetourError::NotKept(_)
            | DetourError::NotLeft => false,
            // The region is refused for good.
            DetourError::NoPlace | DetourError::NotMapped | DetourError::Guest(_) => true,
        }
    }

    /// The guest writes to this address: how often it has written to the region, if it is in there.
    pub(crate) fn count_write(&self, gpa: Gpa) -> Option<u64> {
        match &*self.read() {
            State::Laid(region) if region.holds(gpa) => {
                Some(self.writes.fetch_add(1, Ordering::Relaxed) + 1)
            }
            _ => None,
        }
    }

    /// Takes the region away if nobody needs any of its copies: `needs` says whether the instruction at an address is
    /// probed. The guest's memory is then what it would be had there been none. What is left in the ring, if there was
    /// one, is still to be taken out.
    ///
    /// # Errors
    ///
    /// When the machine refuses.
    pub(crate) fn give_back(
        &self,
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        needs: impl Fn(Gva) -> bool,
    ) -> Result<Option<Arc<Ring>>, DetourError> {
        let mut state = self.write();
        let State::Laid(region) = &*state else {
            return Ok(None);
        };
        if region.originals().any(needs) || !paused.vcpus_have_moved() {
            return Ok(None);
        }
        if !evacuate::evacuate(paused, memory, region)? {
            return Err(DetourError::NotLeft);
        }
        *state = State::NotLaid;
        self.code.store(0, Ordering::Release);
        self.paging.store(None);
        Ok(self.ring.swap(None))
    }
}
