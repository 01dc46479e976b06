//! The hook that passes a stopped vCPU to the probe engine.
//!
//! The vCPU loop owns the contract: the loop copies an exit out of `kvm_run`, states the exit as a [`Trap`], and asks a
//! [`TrapHandler`] for the [`TrapOutcome`]. [`NoTraps`] is the handler of a machine without probes, and gives every trap
//! back to the guest.

use std::fmt;
use std::time::Duration;

use crate::trap::{Trap, TrapError, TrapOutcome};
use crate::{PausedGuard, StoppedVcpu};

/// Receives the traps of all vCPUs, each on its own vCPU's thread.
///
/// `on_trap` runs while the other vCPUs run; it must not take a lock that another vCPU may hold while it waits to be
/// paused. `on_exclusive` runs while no other vCPU runs and no control thread holds a pause.
pub trait TrapHandler: Send + Sync + fmt::Debug {
    /// Decides the next step after a trap.
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

    /// Whether there is room for new output of the guest, for instance events and console output. A vCPU enters the guest only
    /// if `has_room` returns true.
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
