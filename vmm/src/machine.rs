//! The machine: its memory, devices and vCPU threads, from boot to end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use confine::ThreadKind;
use kvm_ioctls::VmFd;

use crate::devices::{Platform, SerialInput};
use crate::kvm::HostFacts;
use crate::memory::{DetourMapError, DetourMemory, DetourSize, PageRange, Ram, SlotError, Slots};
use crate::panicked::{FirstPanic, Panicked};
use crate::trap_handler::TrapHandler;
use crate::vcpu::HardwareBreakpoints;
use crate::vcpu::gate::{Closed, Gate};
use crate::vcpu::kick::KickTarget;
use crate::vcpu::rips::Rips;
use crate::vcpu::{RunError, run};

mod create;
mod event_loop;

use event_loop::EventLoop;

pub use create::{Console, CreateError, Int3Exits, MSR_LSTAR, MachineConfig};

/// How a machine ended.
#[derive(Debug)]
pub enum End {
    /// ACPI S5.
    PowerOff,
    /// Through the i8042 or the ACPI reset register.
    Reset,
    /// A vCPU shut down: an exception while delivering an exception while delivering an exception.
    TripleFault,
    /// All vCPUs halted with interrupts off: nothing can ever wake them.
    Halted,
    /// The guest wrote this byte to the debug-exit port.
    Code(u8),
    /// [`Machine::stop`] or the trap handler has stopped the machine.
    Stopped,
    /// A vCPU could not continue, or a thread of the machine panicked.
    Failed(RunError),
}

/// The end of a machine: the vCPU threads to kick, the flag, the reason for [`Machine::wait`], and the first panic.
#[derive(Debug)]
pub(crate) struct Ending {
    targets: Vec<KickTarget>,
    under_way: AtomicBool,
    reason: Sender<End>,
    panic: FirstPanic,
}

impl Ending {
    fn new(vcpus: usize, reason: Sender<End>) -> Self {
        let targets = (0..vcpus).map(|_| KickTarget::default()).collect();
        Self {
            targets,
            under_way: AtomicBool::new(false),
            reason,
            panic: FirstPanic::default(),
        }
    }

    pub(crate) fn target(&self, vcpu: usize) -> &KickTarget {
        &self.targets[vcpu]
    }

    fn kick_all_but(&self, vcpu: Option<usize>) {
        for (i, target) in self.targets.iter().enumerate() {
            if Some(i) != vcpu {
                target.kick();
            }
        }
    }

    /// Ends the machine. The first reason counts.
    pub(crate) fn end(&self, end: End) {
        if !self.under_way.swap(true, Ordering::AcqRel) {
            // If the receiver is gone, the machine is being dropped.
            let _ = self.reason.send(end);
        }
        self.kick_all_but(None);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.under_way.load(Ordering::Acquire)
    }

    /// Calls `work`, the body of a thread of the machine. A panic ends the machine as failed.
    pub(crate) fn watch(&self, work: impl FnOnce()) {
        if let Err(panicked) = self.panic.watch(work) {
            self.end(End::Failed(panicked.into()));
        }
    }
}

/// The state shared by the threads of a machine.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) vm: Arc<VmFd>,
    pub(crate) memory: Ram,
    slots: Mutex<Slots>,
    /// The guest-physical range kept free for detour memory.
    detour_place: Option<PageRange>,
    pub(crate) rips: Rips,
    pub(crate) gate: Gate,
    pub(crate) facts: HostFacts,
    pub(crate) int3: Int3Exits,
    pub(crate) sync_regs: bool,
    pub(crate) platform: Platform,
    pub(crate) ending: Arc<Ending>,
    /// For each vCPU: whether the last exit was a kick that found the vCPU halted for ever.
    halted: Vec<AtomicBool>,
    breakpoints: Mutex<HardwareBreakpoints>,
    /// Counts changes of `breakpoints`: a vCPU detects a change with a single load.
    breakpoints_changed: AtomicU64,
}

impl Shared {
    pub(crate) fn note_halt(&self, vcpu: usize, halted: bool) {
        // Most exits are no halts, and a load is cheaper than a store to a cache line that other threads read.
        if self.halted[vcpu].load(Ordering::Relaxed) != halted {
            self.halted[vcpu].store(halted, Ordering::Relaxed);
        }
    }

    /// Whether `gpa` lies in the range kept free for detour memory, mapped or not.
    pub(crate) fn is_detour(&self, gpa: u64) -> bool {
        self.detour_place
            .is_some_and(|place| (place.start.0..place.end.0).contains(&gpa))
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

    /// The RIP of each vCPU that [`Machine::start`] has started, published by the vCPU before it parked. A vCPU that waits
    /// for [`TrapHandler::on_exclusive`] has already reported its trap, and may resume at another address.
    #[must_use]
    pub fn vcpu_rips(&self) -> Vec<u64> {
        self.shared.rips.all()
    }

    /// Whether any vCPU handles an NMI. The NMI can have interrupted the guest between any two instructions, and the
    /// interrupted address is unknown.
    #[must_use]
    pub fn is_in_nmi(&self) -> bool {
        self.shared.rips.is_one_in_nmi()
    }

    /// Sets the execution breakpoints of all vCPUs. Each vCPU applies the change before the vCPU loop enters the guest again.
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

/// A virtual machine.
#[derive(Debug)]
pub struct Machine {
    shared: Arc<Shared>,
    vcpus: Vec<kvm_ioctls::VcpuFd>,
    threads: Vec<JoinHandle<()>>,
    input: Option<SerialInput>,
    events: Option<EventLoop>,
    ended: Receiver<End>,
}

impl Machine {
    /// The machine's memory.
    #[must_use]
    pub fn memory(&self) -> &vm_memory::GuestMemoryMmap {
        self.shared.memory.guest()
    }

    /// The facts about this host's KVM.
    #[must_use]
    pub fn facts(&self) -> &HostFacts {
        &self.shared.facts
    }

    /// Number of vCPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.shared.ending.targets.len()
    }

    /// Returns a handle with which other threads pause and stop the machine.
    #[must_use]
    pub fn control(&self) -> Control {
        Control {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Starts the vCPU threads. `handler` gets their traps.
    ///
    /// # Errors
    ///
    /// When the host has no thread to give.
    pub fn start(&mut self, handler: &Arc<dyn TrapHandler>) -> std::io::Result<()> {
        // The gate counts all vCPUs before the first vCPU can wait for the others.
        for _ in &self.vcpus {
            self.shared.gate.enter();
        }
        let mut failed = None;
        for (index, mut fd) in self.vcpus.drain(..).enumerate() {
            let (shared, handler) = (Arc::clone(&self.shared), Arc::clone(handler));
            let spawned = thread::Builder::new()
                .name(format!("vcpu{index}"))
                .spawn(move || {
                    let run = || {
                        confine::enter(ThreadKind::Vcpu);
                        run::run(&mut fd, index, &shared, handler.as_ref());
                    };
                    shared.ending.watch(run);
                });
            match spawned {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    self.shared.gate.leave();
                    failed = Some(error);
                }
            }
        }
        if let Some(error) = failed {
            self.stop();
            return Err(error);
        }
        if let Some(input) = self.input.take() {
            let ending = Arc::clone(&self.shared.ending);
            self.events = Some(EventLoop::start(input, ending)?);
        }
        Ok(())
    }

    /// Waits until the machine has ended, for at most `limit`. `None` if the machine still runs: call again. After a
    /// `Some`, only [`Machine::stop`] makes sense.
    pub fn wait(&self, limit: Option<Duration>) -> Option<End> {
        match limit {
            Some(limit) => match self.ended.recv_timeout(limit) {
                Ok(end) => Some(end),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(End::Stopped),
            },
            None => Some(self.ended.recv().unwrap_or(End::Stopped)),
        }
    }

    /// Whether every vCPU was found halted with interrupts off at the last kick: nothing can ever wake a vCPU then. KVM
    /// does not report a halt. Each call therefore kicks the vCPUs, and each vCPU records its state for the next call. A
    /// call costs each vCPU an exit; a second between calls is often enough.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        let halted = self
            .shared
            .halted
            .iter()
            .all(|halted| halted.load(Ordering::Relaxed));
        self.shared.ending.kick_all_but(None);
        halted
    }

    /// Ends all vCPU threads and waits for them. Does nothing the second time.
    pub fn stop(&mut self) {
        self.shared.ending.end(End::Stopped);
        for thread in self.threads.drain(..) {
            // A vCPU's panic is caught in its thread.
            let _ = thread.join();
        }
        self.events = None;
    }

    /// The first panic of a thread of the machine, for every kind of [`End`].
    #[must_use]
    pub fn panicked(&self) -> Option<Panicked> {
        self.shared.ending.panic.get()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Pauses and stops a machine from any thread that runs no vCPU.
#[derive(Clone, Debug)]
pub struct Control {
    shared: Arc<Shared>,
}

impl Control {
    /// Pauses every vCPU, and returns once all vCPUs are out of the guest. The vCPUs resume when the guard is dropped.
    /// Never call `pause_all` on a vCPU's thread.
    #[must_use]
    pub fn pause_all(&self) -> PausedGuard<'_> {
        let closed = self
            .shared
            .gate
            .close(|| self.shared.ending.kick_all_but(None));
        PausedGuard {
            _closed: closed,
            shared: &self.shared,
        }
    }

    /// The machine's memory.
    #[must_use]
    pub fn memory(&self) -> &vm_memory::GuestMemoryMmap {
        self.shared.memory.guest()
    }

    /// Whether the gate is closed now: a new pause would have to wait.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.shared.gate.is_closed()
    }

    /// Makes each vCPU exit and check for room ([`TrapHandler::has_room`]) before the next entry. Does not wait for the exits.
    pub fn kick(&self) {
        self.shared.ending.kick_all_but(None);
    }

    /// Number of vCPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.shared.ending.targets.len()
    }

    /// Whether the machine has ended or is about to end. The holder of a pause must then drop the pause: the vCPU threads
    /// cannot end before.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.shared.ending.is_ending()
    }

    /// Ends the machine with the reason `end`. The first reason counts.
    pub fn end(&self, end: End) {
        self.shared.ending.end(end);
    }

    /// Calls `work`, the body of a thread that belongs to the machine. A panic of `work` ends the machine with [`End::Failed`], and is
    /// not passed on.
    pub fn watch(&self, work: impl FnOnce()) {
        self.shared.ending.watch(work);
    }
}
