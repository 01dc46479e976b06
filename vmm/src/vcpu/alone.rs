//! One vCPU, run alone: the others are paused, and it runs until it is about to execute one of a few places.

use std::time::Duration;

use kvm_bindings::kvm_regs;

use super::run::{Left, RunError};
use super::stopped::{HardwareBreakpoints, StoppedVcpu};
use super::watchdog::Watchdog;
use crate::PausedGuard;
use crate::trap::{Trap, TrapHandler};

/// A vCPU that has moved is kicked so many times, one limit after the other, before its time is over. Kicks are counted, not
/// time: a thread that the host has no processor for finds one kick, however many were due.
const KICKS: u32 = 3;
/// The same for a vCPU that is still where it began: it executes one long instruction, a repeated one perhaps, which can be
/// left half-way.
const PATIENCE: u32 = 100;

/// How a vCPU is run alone, and how far.
#[derive(Clone, Copy, Debug)]
pub struct Alone<'a> {
    /// Linear addresses. Before any of these is executed, the run ends. The caller has put something there that leaves
    /// the guest: the byte of a one-byte port write, where those are usable, or of an `int3`.
    pub stops: &'a [u64],
    /// So often the vCPU is kicked; the run ends with the third kick, or, if it has not moved, with the hundredth.
    pub limit: Duration,
    /// Whether the debug registers set by [`PausedGuard::set_breakpoints`] stay in force.
    pub breakpoints: bool,
}

/// How the run of a vCPU alone ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AloneEnd {
    /// The vCPU is about to execute this stop; RIP is there.
    At(u64),
    /// It has not come to a stop within the limit. It may be anywhere.
    TimedOut,
    /// The machine ended meanwhile.
    MachineEnded,
}

impl StoppedVcpu<'_> {
    /// Runs this vCPU from its RIP on until it is about to execute a stop. The other vCPUs are paused, as `paused`
    /// shows; interrupts are held back where KVM can
    /// ([`holds_interrupts`](crate::HostFacts::holds_interrupts)). No flag of the guest's is changed.
    ///
    /// Devices are answered on the way. Traps at other places than the stops go to `handler`, with the same pause: a
    /// handler may run the vCPU alone itself.
    ///
    /// # Errors
    ///
    /// When KVM refuses, or the handler does.
    pub fn run_alone(
        &mut self,
        paused: &PausedGuard<'_>,
        handler: &dyn TrapHandler,
        alone: &Alone<'_>,
    ) -> Result<AloneEnd, RunError> {
        self.abandon_port_write()?;
        let before = self.debugging;
        let breakpoints = if alone.breakpoints {
            before.breakpoints
        } else {
            HardwareBreakpoints::default()
        };
        self.set_debug(&breakpoints, true)?;
        let end = self.run_to_stop(paused, handler, alone);
        // Changes that were asked for meanwhile are made before the guest is next entered.
        self.set_debug(&before.breakpoints, before.alone)?;
        end
    }

    fn run_to_stop(
        &mut self,
        paused: &PausedGuard<'_>,
        handler: &dyn TrapHandler,
        alone: &Alone<'_>,
    ) -> Result<AloneEnd, RunError> {
        let start = self.regs()?.rip;
        let mut kicks = 0;
        let _watchdog = Watchdog::every(alone.limit);
        loop {
            match self.enter()? {
                Left::Handled => (),
                Left::Ended(end) => {
                    self.shared.ending.end(end);
                    return Ok(AloneEnd::MachineEnded);
                }
                Left::Interrupted => {
                    if self.shared.ending.is_ending() {
                        return Ok(AloneEnd::MachineEnded);
                    }
                    let now = self.regs()?;
                    if alone.stops.contains(&now.rip) {
                        return Ok(AloneEnd::At(now.rip));
                    }
                    kicks += 1;
                    let has_moved = now.rip != start;
                    if kicks >= if has_moved { KICKS } else { PATIENCE } {
                        return Ok(AloneEnd::TimedOut);
                    }
                }
                Left::Trapped(
                    trap @ (Trap::PortWrite { at } | Trap::Breakpoint { at }),
                    otherwise,
                ) if alone.stops.contains(&at) => {
                    // Or the vCPU has come there by an `outs`, and what it wrote is not done.
                    if self.is_behind_outs()? {
                        self.otherwise(trap, otherwise)?;
                    }
                    let regs = self.regs()?;
                    self.set_regs(&kvm_regs { rip: at, ..regs })?;
                    return Ok(AloneEnd::At(at));
                }
                Left::Trapped(trap, otherwise) => {
                    if let Some(end) = self.answer(handler, trap, otherwise, Some(paused))? {
                        self.shared.ending.end(end);
                        return Ok(AloneEnd::MachineEnded);
                    }
                }
            }
        }
    }
}
