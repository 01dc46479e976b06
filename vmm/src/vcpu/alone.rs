//! A vCPU that runs alone: the other vCPUs are paused, and the vCPU runs until it is about to execute a stop.

use std::time::Duration;

use address::Gva;
use kvm_bindings::kvm_regs;

use super::debug_setup::{HardwareBreakpoint, HardwareBreakpoints};
use super::error::RunError;
use super::exit::VmExit;
use super::stopped::StoppedVcpu;
use super::watchdog::Watchdog;
use crate::PausedGuard;
use crate::trap::Trap;
use crate::trap_handler::TrapHandler;

/// Number of kicks, a limit apart, after which the run ends for a vCPU that has moved. The run counts kicks, not time: a
/// thread that the host has not scheduled finds a single kick, even if several were due.
const KICKS: u32 = 3;
/// Number of kicks, in place of [`KICKS`], for a vCPU of the kernel still at the RIP where the run began. The vCPU executes a long
/// instruction, for instance a repeated instruction, which can exit half-way. A program can repeat an instruction without end.
const PATIENCE: u32 = 100;

/// Parameters of the run of a vCPU alone.
#[derive(Clone, Copy, Debug)]
pub struct Alone<'a> {
    /// Linear addresses of the stops. The run ends before the vCPU executes a stop. At each stop in the kernel's half of the address space
    /// the caller has planted a byte that exits: the byte of a one-byte port write, if usable on the host, or of an `int3`.
    pub stops: &'a [Gva],
    /// Period of the kicks. The run ends with the third kick, or, if the vCPU is in the kernel and has not moved, with the hundredth.
    pub limit: Duration,
    /// The debug registers during the run.
    pub breakpoints: AloneBreakpoints,
}

/// The debug registers of a vCPU that runs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AloneBreakpoints {
    /// Those set by [`PausedGuard::set_breakpoints`] stay in force.
    Kept,
    /// The first four stops in the programs' half of the address space, where no plant exits. Those set by [`PausedGuard::set_breakpoints`] for
    /// data stay in force, in their registers, as far as the stops leave registers.
    ProgramStops,
}

impl Alone<'_> {
    fn breakpoints(&self, kept: HardwareBreakpoints) -> HardwareBreakpoints {
        match self.breakpoints {
            AloneBreakpoints::Kept => kept,
            AloneBreakpoints::ProgramStops => {
                let stops = self.stops.iter().filter(|stop| is_programs(**stop));
                let of_data = kept.0.map(|used| used.filter(|used| used.is_of_data()));
                let mut registers = [0, 1, 2, 3];
                registers.sort_by_key(|&i| of_data[i].is_some());
                let mut set = of_data;
                for (i, stop) in registers.into_iter().zip(stops) {
                    set[i] = Some(HardwareBreakpoint::Execute(*stop));
                }
                HardwareBreakpoints(set)
            }
        }
    }
}

/// Whether the address is in the half of the address space that programs have.
const fn is_programs(at: Gva) -> bool {
    at.0 >> 63 == 0
}

/// How the run of a vCPU alone ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AloneEnd {
    /// The vCPU is about to execute the stop at the given address; RIP is at the stop.
    At(Gva),
    /// The vCPU has not reached a stop within the limit. RIP may be anywhere.
    TimedOut,
    /// The machine ended meanwhile.
    MachineEnded,
}

impl StoppedVcpu<'_> {
    /// Runs the vCPU from its RIP on until it is about to execute a stop. The other vCPUs are paused, as `paused` proves.
    /// If KVM can hold interrupts back ([`holds_interrupts`](crate::HostFacts::holds_interrupts)), KVM does. The run changes
    /// no flag of the guest.
    ///
    /// Devices answer their exits during the run. Traps outside the stops go to `handler`, with the same pause: a
    /// handler may run the vCPU alone, too.
    ///
    /// # Errors
    ///
    /// When KVM refuses a request, or the handler fails.
    pub fn run_alone(
        &mut self,
        paused: &PausedGuard<'_>,
        handler: &dyn TrapHandler,
        alone: &Alone<'_>,
    ) -> Result<AloneEnd, RunError> {
        self.abandon_port_write()?;
        let before = self.debugging;
        self.set_debug(&alone.breakpoints(before.breakpoints), true)?;
        let end = self.run_to_stop(paused, handler, alone);
        // The vCPU loop applies breakpoints set meanwhile before the next entry.
        self.set_debug(&before.breakpoints, before.alone)?;
        end
    }

    fn run_to_stop(
        &mut self,
        paused: &PausedGuard<'_>,
        handler: &dyn TrapHandler,
        alone: &Alone<'_>,
    ) -> Result<AloneEnd, RunError> {
        let start = self.registers.rip()?;
        let mut kicks = 0;
        let _watchdog = Watchdog::every(alone.limit);
        loop {
            match self.enter()? {
                VmExit::Handled => (),
                VmExit::Ended(end) => {
                    self.shared.ending.end(end);
                    return Ok(AloneEnd::MachineEnded);
                }
                VmExit::Interrupted => {
                    if self.shared.ending.is_ending() {
                        return Ok(AloneEnd::MachineEnded);
                    }
                    let now = self.registers.rip()?;
                    if alone.stops.contains(&now) {
                        return Ok(AloneEnd::At(now));
                    }
                    kicks += 1;
                    let is_long = now == start && !is_programs(start);
                    if kicks >= if is_long { PATIENCE } else { KICKS } {
                        return Ok(AloneEnd::TimedOut);
                    }
                }
                VmExit::Trapped(
                    trap @ (Trap::PortWrite { at } | Trap::Breakpoint { at }),
                    action,
                ) if alone.stops.contains(&at) => {
                    // The vCPU may instead have reached the stop by an `outs`. Then the port write is still to be done.
                    if self.is_behind_outs()? {
                        self.take_default(trap, action)?;
                    }
                    let regs = self.registers.regs()?;
                    self.registers.set_regs(&kvm_regs { rip: at.0, ..regs })?;
                    return Ok(AloneEnd::At(at));
                }
                // The debug register fires in front of the instruction. One for data fires behind it, and the vCPU reaches the stop later.
                VmExit::Trapped(Trap::HardwareBreakpoint { at, written: 0, .. }, _)
                    if alone.breakpoints == AloneBreakpoints::ProgramStops
                        && alone.stops.contains(&at) =>
                {
                    return Ok(AloneEnd::At(at));
                }
                VmExit::Trapped(trap, action) => {
                    if let Some(end) = self.answer(handler, trap, action, Some(paused))? {
                        self.shared.ending.end(end);
                        return Ok(AloneEnd::MachineEnded);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcpu::debug_setup::BreakpointBytes;

    #[test]
    fn stops_of_programs_take_free_registers_before_those_for_data() {
        let write = HardwareBreakpoint::Write(Gva(0x8000), BreakpointBytes::Eight);
        let other = HardwareBreakpoint::Execute(Gva(0x9000));
        let kept = HardwareBreakpoints([Some(write), Some(other), None, Some(write)]);
        let set = |stops: &[Gva]| {
            let alone = Alone {
                stops,
                limit: Duration::ZERO,
                breakpoints: AloneBreakpoints::ProgramStops,
            };
            alone.breakpoints(kept).0
        };
        let stop = |at| Some(HardwareBreakpoint::Execute(Gva(at)));
        // The stops of the kernel have plants.
        let kernel = Gva(0xffff_ffff_8100_0000);
        assert_eq!(set(&[kernel]), [Some(write), None, None, Some(write)]);
        let one = [Some(write), stop(1), None, Some(write)];
        assert_eq!(set(&[kernel, Gva(1)]), one);
        let three = [stop(3), stop(1), stop(2), Some(write)];
        assert_eq!(set(&[Gva(1), Gva(2), Gva(3)]), three);
    }
}
