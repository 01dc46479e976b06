//! The state shared by the threads of a machine, and the pause.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use address::{Gpa, Gva};
use kvm_ioctls::VmFd;

use super::ending::Ending;
use super::int3_exits::Int3Exits;
use crate::devices::Platform;
use crate::kvm::HostFacts;
use crate::memory::{
    DetourMapError, DetourMemory, DetourSize, PageRange, ProtectError, ProtectedPages, Protection,
    Ram, SlotError, Slots,
};
use crate::vcpu::gate::{Closed, Gate};
use crate::vcpu::rips::Rips;
use crate::vcpu::state::StateReaders;
use crate::vcpu::{HardwareBreakpoints, VcpuError, VcpuState};

/// The state shared by the threads of a machine.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) vm: Arc<VmFd>,
    pub(crate) memory: Ram,
    pub(super) slots: Mutex<Slots>,
    pub(super) protected: Mutex<ProtectedPages>,
    /// Whether any page is protected: a vCPU whose entry fails checks the flag without a lock.
    pub(super) has_protected: AtomicBool,
    /// The guest-physical range kept free for detour memory.
    pub(super) detour_place: Option<PageRange>,
    pub(crate) rips: Rips,
    pub(super) states: StateReaders,
    pub(crate) gate: Gate,
    pub(crate) facts: HostFacts,
    pub(crate) int3: Int3Exits,
    pub(crate) sync_regs: bool,
    pub(crate) platform: Platform,
    pub(crate) ending: Arc<Ending>,
    /// For each vCPU: whether the last exit was a kick that found the vCPU halted for ever.
    pub(super) halted: Vec<AtomicBool>,
    pub(super) breakpoints: Mutex<HardwareBreakpoints>,
    /// Counts changes of `breakpoints`: a vCPU detects a change with a single load.
    pub(super) breakpoints_changed: AtomicU64,
}

impl Shared {
    pub(crate) fn note_halt(&self, vcpu: usize, halted: bool) {
        // Most exits are no halts, and a load is cheaper than a store to a cache line that other threads read.
        if self.halted[vcpu].load(Ordering::Relaxed) != halted {
            self.halted[vcpu].store(halted, Ordering::Relaxed);
        }
    }

    /// Whether `gpa` lies in the range kept free for detour memory, mapped or not.
    pub(crate) fn is_detour(&self, gpa: Gpa) -> bool {
        self.detour_place
            .is_some_and(|place| (place.start..place.end).contains(&gpa))
    }

    /// Whether a guest write to a protected page can be the reason for a failed entry.
    pub(crate) fn has_protected_pages(&self) -> bool {
        self.has_protected.load(Ordering::Acquire)
    }

    /// Pauses every vCPU, and returns once all vCPUs are out of the guest. Called on a thread that runs no vCPU.
    pub(super) fn pause_all(&self) -> PausedGuard<'_> {
        let closed = self.gate.close(|| self.ending.kick_all_but(None));
        PausedGuard {
            _closed: closed,
            shared: self,
        }
    }

    /// Pauses every vCPU except `index`. Called on the thread of vCPU `index`.
    pub(crate) fn pause_others(&self, index: usize) -> PausedGuard<'_> {
        let closed = self
            .gate
            .close_from_vcpu(|| self.ending.kick_all_but(Some(index)));
        PausedGuard {
            _closed: closed,
            shared: self,
        }
    }

    /// The debug registers in force and their generation, if they have changed since `generation`.
    pub(crate) fn breakpoints_since(&self, generation: u64) -> Option<(u64, HardwareBreakpoints)> {
        (self.breakpoints_changed.load(Ordering::Acquire) != generation).then(|| {
            let breakpoints = lock(&self.breakpoints);
            (
                self.breakpoints_changed.load(Ordering::Acquire),
                *breakpoints,
            )
        })
    }
}

/// Locks `mutex`, poisoned or not. The locked data is valid after every statement, so a panicking thread spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pause: while the guard lives, no vCPU runs, except a vCPU whose trap handler holds the guard.
#[derive(Debug)]
pub struct PausedGuard<'a> {
    _closed: Closed<'a>,
    shared: &'a Shared,
}

impl PausedGuard<'_> {
    /// The machine's memory.
    #[must_use]
    pub fn memory(&self) -> &vm_memory::GuestMemoryMmap {
        self.shared.memory.guest()
    }

    /// Number of vCPUs, started or not.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.shared.ending.targets.len()
    }

    /// Makes exactly the pages in `ranges` (sorted, disjoint) read-only for the guest.
    ///
    /// # Errors
    ///
    /// When KVM has too few slots for the ranges: no slot has changed. When KVM refuses a slot: the machine must not resume.
    pub fn set_read_only(&self, ranges: &[PageRange]) -> Result<(), SlotError> {
        lock(&self.shared.slots).apply(&self.shared.vm, ranges)
    }

    /// Protects exactly these pages of RAM, given by their addresses: each access of the guest that the protection names is a
    /// [`Trap::ProtectedAccess`](crate::Trap::ProtectedAccess), or, where KVM emulates the guest's instructions, a write is a
    /// [`Trap::GuestWrite`](crate::Trap::GuestWrite) and a read is answered from RAM, with a
    /// [`Trap::GuestRead`](crate::Trap::GuestRead). Accesses of the VMM are as before.
    ///
    /// # Errors
    ///
    /// When a page is not RAM, there are too many pages or slots, or the host refuses a mapping or its rights: the pages protected before
    /// still are. When KVM refuses a slot: the machine must not resume.
    pub fn protect_pages(&self, pages: &BTreeMap<Gpa, Protection>) -> Result<(), ProtectError> {
        let mut protected = lock(&self.shared.protected);
        let views = protected.views(self.shared.memory.guest(), pages)?;
        let mut slots = lock(&self.shared.slots);
        let before = slots.set_views(&self.shared.vm, views)?;
        if let Err(error) = protected.protect(pages.clone()) {
            slots.set_views(&self.shared.vm, before)?;
            return Err(error);
        }
        self.shared
            .has_protected
            .store(!pages.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Lets the guest access the protected pages without an exit, or protects the pages again.
    ///
    /// # Errors
    ///
    /// When the host refuses: the machine must not resume.
    pub fn lift_protection(&self, lifted: bool) -> Result<(), ProtectError> {
        lock(&self.shared.protected).lift(lifted)
    }

    /// Maps zeroed detour memory into the guest's physical address space. If detour memory is already mapped, returns
    /// the mapped memory unchanged.
    ///
    /// # Errors
    ///
    /// When no address is free, the host has no memory, or KVM refuses a slot. After a refused slot, the machine must not
    /// resume.
    pub fn map_detour(&self, size: DetourSize) -> Result<DetourMemory, DetourMapError> {
        let mut slots = lock(&self.shared.slots);
        if let Some(detour) = slots.detour() {
            return Ok(detour.clone());
        }
        let place = self.shared.detour_place.ok_or(DetourMapError::NoPlace)?;
        let detour = DetourMemory::new(place.start, size)?;
        slots.set_detour(&self.shared.vm, &detour)?;
        Ok(detour)
    }

    /// The RIP of each vCPU that [`Machine::start`](crate::Machine::start) has started, published by the vCPU before it parked. A vCPU that waits
    /// for [`TrapHandler::on_exclusive`](crate::TrapHandler::on_exclusive) has already reported its trap, and may resume at another address.
    #[must_use]
    pub fn vcpu_rips(&self) -> Vec<Gva> {
        self.shared.rips.all()
    }

    /// The registers of all vCPUs. A vCPU that waits for [`TrapHandler::on_exclusive`](crate::TrapHandler::on_exclusive) is at its trap.
    ///
    /// # Errors
    ///
    /// When KVM refuses a request.
    pub fn vcpu_states(&self) -> Result<Vec<VcpuState>, VcpuError> {
        self.shared.states.read(&self.shared.rips.registers())
    }

    /// Whether any vCPU handles an NMI. The NMI can have interrupted the guest between any two instructions, and the
    /// interrupted address is unknown.
    #[must_use]
    pub fn is_in_nmi(&self) -> bool {
        self.shared.rips.is_one_in_nmi()
    }

    /// Sets the breakpoints of all vCPUs. Each vCPU applies the change before the vCPU loop enters the guest again.
    pub fn set_breakpoints(&self, breakpoints: HardwareBreakpoints) {
        let mut current = lock(&self.shared.breakpoints);
        if *current != breakpoints {
            *current = breakpoints;
            self.shared
                .breakpoints_changed
                .fetch_add(1, Ordering::AcqRel);
        }
    }
}
