//! The hook through which a stopped vCPU is handed to the probe engine.
//!
//! The vCPU loop owns the contract: it copies an exit out of `kvm_run`, states it as a [`Trap`], and asks a
//! [`TrapHandler`] what to do. [`NoTraps`] is the handler of a machine without probes: it gives everything back
//! to the guest.

use std::fmt;
use std::time::Duration;

use vm_memory::GuestAddress;

use crate::{PausedGuard, StoppedVcpu};

/// Why a vCPU stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// An `int3` is about to be executed at this linear address.
    Breakpoint {
        /// Linear address of the `int3`.
        at: u64,
    },
    /// A one-byte port write (`out dx, al`, or a form of it) at this linear address. The port is not told: a plant
    /// is recognised by where it is.
    PortWrite {
        /// Linear address of the instruction.
        at: u64,
    },
    /// An execution breakpoint or data watchpoint in a debug register fired.
    HardwareBreakpoint {
        /// Bits 0–3: which of DR0–DR3.
        fired: u8,
        /// Linear address of the next instruction.
        at: u64,
    },
    /// The guest wrote to a page that is in a read-only slot, of RAM or of detour memory. Nothing has been written: the
    /// handler decides. To detour memory nothing is ever written.
    GuestWrite {
        /// Where, guest-physical.
        gpa: GuestAddress,
        /// What; the first [`Trap::GuestWrite::len`] bytes count.
        bytes: [u8; 8],
        /// 1 to 8.
        len: usize,
    },
    /// The guest writes a model-specific register that the machine was told to report. Not yet written.
    MsrWrite {
        /// The register.
        index: u32,
        /// The value.
        value: u64,
    },
    /// KVM could not emulate the instruction at RIP.
    EmulationFailure,
}

/// What the vCPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TrapOutcome {
    /// Handled: go on with the registers as they are now.
    Resume,
    /// Not the engine's: what would have happened without it happens now. A breakpoint becomes #BP for the guest,
    /// a port write reaches its device, a memory or MSR write takes place, an emulation failure ends the run.
    Reinject,
    /// Call [`TrapHandler::on_exclusive`] for this trap, with every other vCPU paused.
    Exclusive,
    /// End the run.
    Stop,
}

/// A handler could not do its work; the machine stops.
#[derive(Debug, thiserror::Error)]
#[error("cannot handle {what} on vCPU {vcpu} at {rip:#x}")]
pub struct TrapError {
    /// What was being handled.
    pub what: &'static str,
    /// Which vCPU.
    pub vcpu: usize,
    /// Its RIP.
    pub rip: u64,
    /// The cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Receives the traps of all vCPUs, each on its own vCPU's thread.
///
/// `on_trap` runs while the other vCPUs run; it must not take a lock that another vCPU may hold while it waits to be
/// paused. `on_exclusive` runs while no other vCPU runs and no control thread holds a pause.
pub trait TrapHandler: Send + Sync + fmt::Debug {
    /// Says what to do about a trap.
    ///
    /// # Errors
    ///
    /// Any error stops the machine and is reported as its end.
    fn on_trap(&self, vcpu: &mut StoppedVcpu<'_>, trap: Trap) -> Result<TrapOutcome, TrapError>;

    /// Called after `on_trap` answered [`TrapOutcome::Exclusive`].
    ///
    /// # Errors
    ///
    /// Any error stops the machine and is reported as its end.
    fn on_exclusive(
        &self,
        vcpu: &mut StoppedVcpu<'_>,
        paused: &PausedGuard<'_>,
        trap: Trap,
    ) -> Result<TrapOutcome, TrapError>;

    /// Whether there is room for what the guest causes next, such as events and console output. A vCPU enters the guest only
    /// while there is.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits for room, at most for `limit`. The vCPU counts as paused meanwhile.
    fn await_room(&self, limit: Duration) {
        let _ = limit;
    }
}

/// The handler of a machine without probes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTraps;

impl TrapHandler for NoTraps {
    fn on_trap(&self, _vcpu: &mut StoppedVcpu<'_>, _trap: Trap) -> Result<TrapOutcome, TrapError> {
        Ok(TrapOutcome::Reinject)
    }

    fn on_exclusive(
        &self,
        _vcpu: &mut StoppedVcpu<'_>,
        _paused: &PausedGuard<'_>,
        _trap: Trap,
    ) -> Result<TrapOutcome, TrapError> {
        Ok(TrapOutcome::Reinject)
    }
}
