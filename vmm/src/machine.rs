//! The machine: its memory, devices and vCPU threads, from boot to end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use confine::ThreadKind;

use crate::devices::SerialInput;
use crate::kvm::HostFacts;
use crate::panicked::Panicked;
use crate::trap_handler::TrapHandler;
use crate::vcpu::run;

mod create;
pub(crate) mod ending;
mod event_loop;
pub(crate) mod int3_exits;
pub(crate) mod shared;

use event_loop::EventLoop;

pub use create::{Console, CreateError, MSR_LSTAR, MachineConfig};
pub use ending::End;
pub use int3_exits::Int3Exits;
pub use shared::PausedGuard;
use shared::Shared;

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
        self.shared.pause_all()
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
