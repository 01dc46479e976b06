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
mod switch;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use arc_swap::{ArcSwapOption, Guard};
use introspect::insn::Decoded;
use introspect::{Gpa, Gva, KernelInt3, PagingState};
use vmm::Pop;

use crate::guest::{GuestError, GuestMemory, Paused};
use crate::plant::Jump;
use evacuate::Evacuated;
use region::Region;
use switch::{LeadsTo, Switch};

pub(crate) use cells::Words;
pub(crate) use code::{NotKept, Processor};
pub(crate) use jumped::{Jumped, Lead};
pub(crate) use made::{Keeps, LeftAt, MadeDetour, Use};
pub(crate) use region::ChangedEntry;
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
    /// The guest has changed its page tables.
    #[error("the guest has changed an entry of its page tables that leads to the detour region")]
    Lost,
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
    leaves: Leaves,
}

impl WayOut {
    const fn plain(to: Gva, leaves: Leaves) -> Self {
        let pops = &[];
        Self { to, pops, leaves }
    }
}

/// How a thread gets out of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// It is moved: it has not been counted, or all that it is there for is done.
    Moved,
    /// It runs on. It may have been counted, and would be again at its way out, where a plant can be when it comes there.
    RunningOn,
}

/// Where the guest's kernel is.
#[derive(Clone, Debug)]
pub(crate) struct KernelSpace {
    /// Its own page tables.
    pub(crate) paging: PagingState,
    /// Its image, from the first byte to the last, as it runs.
    pub(crate) image: Range<Gva>,
}

/// Whether the guest's handler may be given an `int3` of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandedOn {
    /// None is on its way there.
    Nobody,
    /// One may be.
    Somebody,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody has needed it.
    #[default]
    NotLaid,
    Laid(Box<Region>),
    /// This guest has no place for it.
    Refused,
    /// The guest has changed an entry that leads there. Whoever is in it runs on, as far as he gets; nobody is sent there
    /// any more, and it stays as it is.
    Lost(Box<Region>),
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
            Self::Lost(_) => return Err(DetourError::Lost),
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

    /// The `int3` at `site` is to lead to `to`, a detour that has been made; `int3` is how the kernel handles it. The first
    /// time, `open` puts the jump into the kernel's handler, between whose instructions under it no vCPU is then.
    ///
    /// # Errors
    ///
    /// When there is no room, or the handler cannot be led here; then nothing has changed.
    pub(crate) fn lead(
        &self,
        paused: &dyn Paused,
        int3: &KernelInt3,
        site: Gva,
        to: Gva,
        open: impl FnOnce(Gva, Jump) -> Result<(), DetourError>,
    ) -> Result<(), DetourError> {
        let mut state = self.write();
        let State::Laid(region) = &mut *state else {
            return Err(DetourError::NoPlace);
        };
        let begun = region.lead(int3, site, to)?;
        let Some((at, jump)) = begun else {
            return Ok(());
        };
        let middle = region.switch().map(Switch::middle);
        // An NMI may have come there, too.
        let is_free =
            !paused.vcpu_rips().iter().any(|rip| Some(*rip) == middle) && !paused.is_in_nmi();
        let opened = if is_free {
            open(at, jump)
        } else {
            Err(DetourError::NotLeft)
        };
        opened.inspect_err(|_| region.drop_switch())
    }

    /// The `int3` at `site`, if one has led to a detour, does so no more.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
    pub(crate) fn end_lead(&self, site: Gva) -> Result<(), DetourError> {
        match &mut *self.write() {
            State::Laid(region) => region.set_lead(site, LeadsTo::Back),
            State::NotLaid | State::Refused | State::Lost(_) => Ok(()),
        }
    }

    /// Whether an `int3` of the guest's own at `site`, which memory does not show, would be taken for one of ours.
    pub(crate) fn sends_back(&self, site: Gva) -> bool {
        if self.code.load(Ordering::Acquire) == 0 {
            return false;
        }
        match &*self.read() {
            State::Laid(region) => region.switch().is_some_and(|it| it.sends_back(site)),
            State::NotLaid | State::Refused | State::Lost(_) => false,
        }
    }

    /// The `int3` at `site` is the guest's own from now on. Who has executed one of ours goes back to it first.
    ///
    /// # Errors
    ///
    /// When memory cannot be written.
    pub(crate) fn hand_on(&self, paused: &dyn Paused, site: Gva) -> Result<HandedOn, DetourError> {
        let mut state = self.write();
        let State::Laid(region) = &mut *state else {
            return Ok(HandedOn::Nobody);
        };
        let known = region.switch().filter(|switch| switch.sends_back(site));
        let Some(switch) = known else {
            return Ok(HandedOn::Nobody);
        };
        // Who has not heeded the last move has not run since, and that is where he goes anyway.
        if paused.vcpus_have_moved() {
            let moves: BTreeMap<_, _> = switch.moves().collect();
            if paused
                .vcpu_rips()
                .iter()
                .any(|rip| moves.contains_key(&rip.0))
            {
                paused.move_vcpus(moves);
            }
        }
        // An NMI may have come on the way.
        let handed_on = if paused.is_in_nmi() {
            HandedOn::Somebody
        } else {
            HandedOn::Nobody
        };
        region.set_lead(site, LeadsTo::Handler)?;
        Ok(handed_on)
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
            State::Laid(region) | State::Lost(region) => region.left_at(rip),
            State::NotLaid | State::Refused => None,
        }
    }

    /// Where the kernel was when the region was laid, if it is.
    pub(crate) fn kernel(&self) -> Option<KernelSpace> {
        match &*self.read() {
            State::Laid(region) | State::Lost(region) => Some(region.kernel.clone()),
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
            | DetourError::NotLeft
            | DetourError::Lost => false,
            // The region is refused for good.
            DetourError::NoPlace | DetourError::NotMapped | DetourError::Guest(_) => true,
        }
    }

    /// The guest writes to this address: how often it has written to the region, if it is in there.
    pub(crate) fn count_write(&self, gpa: Gpa) -> Option<u64> {
        match &*self.read() {
            State::Laid(region) | State::Lost(region) if region.holds(gpa) => {
                Some(self.writes.fetch_add(1, Ordering::Relaxed) + 1)
            }
            _ => None,
        }
    }

    /// Whether the region is laid.
    pub(crate) fn is_laid(&self) -> bool {
        matches!(&*self.read(), State::Laid(_))
    }

    /// After [`give_back`](Self::give_back) has failed with [`DetourError::NotLeft`]: whether it is worth another try, as
    /// far as can be seen while the guest runs.
    pub(crate) fn may_have_been_left(&self, memory: &dyn GuestMemory) -> bool {
        match &*self.read() {
            State::Laid(region) => !region.keepers.iter().any(|it| it.is_there(memory)),
            State::NotLaid | State::Refused | State::Lost(_) => false,
        }
    }

    /// The entry that leads to the region and says something else than was written there, if one does.
    pub(crate) fn changed_entry(&self, memory: &dyn GuestMemory) -> Option<ChangedEntry> {
        match &*self.read() {
            State::Laid(region) => region.changed_entry(memory),
            State::NotLaid | State::Refused | State::Lost(_) => None,
        }
    }

    /// The region is used no more, and not given back. Who has executed an `int3` and not come there goes back to it.
    pub(crate) fn lose(&self, paused: &dyn Paused) {
        let mut state = self.write();
        if let State::Laid(region) = &*state
            && let Some(switch) = region.switch()
            && paused.vcpus_have_moved()
        {
            paused.move_vcpus(switch.moves().collect());
        }
        *state = match std::mem::take(&mut *state) {
            State::Laid(region) => State::Lost(region),
            other => other,
        };
    }

    /// Takes the region away if nobody needs any of its copies: `needs` says whether the instruction at an address is
    /// probed. The guest's memory is then what it would be had there been none. What is left in the ring, if there was
    /// one, is still to be taken out. `close` takes the jump out of the kernel's handler of `int3`, if there is one.
    ///
    /// # Errors
    ///
    /// When somebody is in it who cannot be moved, or the machine refuses.
    pub(crate) fn give_back(
        &self,
        paused: &dyn Paused,
        memory: &dyn GuestMemory,
        needs: impl Fn(Gva) -> bool,
        close: impl FnOnce() -> Result<(), GuestError>,
    ) -> Result<Option<Arc<Ring>>, DetourError> {
        let mut state = self.write();
        let State::Laid(region) = &mut *state else {
            return Ok(None);
        };
        if region.originals().any(needs) {
            return Ok(None);
        }
        if !paused.vcpus_have_moved() {
            region.keepers.clear();
            return Err(DetourError::NotLeft);
        }
        if let Evacuated::Kept(keepers) = evacuate::evacuate(paused, memory, region, close)? {
            region.keepers = keepers;
            return Err(DetourError::NotLeft);
        }
        *state = State::NotLaid;
        self.code.store(0, Ordering::Release);
        self.paging.store(None);
        Ok(self.ring.swap(None))
    }
}
