//! The end of a machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use crate::panicked::FirstPanic;
use crate::vcpu::RunError;
use crate::vcpu::kick::KickTarget;

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
    /// [`Machine::stop`](crate::Machine::stop) or the trap handler has stopped the machine.
    Stopped,
    /// A vCPU could not continue, or a thread of the machine panicked.
    Failed(RunError),
}

/// The end of a machine: the vCPU threads to kick, the flag, the reason for [`Machine::wait`](crate::Machine::wait), and the first
/// panic.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(super) targets: Vec<KickTarget>,
    under_way: AtomicBool,
    reason: Sender<End>,
    pub(super) panic: FirstPanic,
}

impl Ending {
    /// An end that is not under way, for `vcpus` vCPU threads.
    pub(super) fn new(vcpus: usize, reason: Sender<End>) -> Self {
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

    /// Kicks every vCPU except `vcpu`.
    pub(super) fn kick_all_but(&self, vcpu: Option<usize>) {
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
