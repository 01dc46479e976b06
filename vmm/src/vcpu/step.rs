//! One instruction of one vCPU, in place, while the others are paused.

use kvm_bindings::kvm_regs;

use super::kick;
use super::run::{Left, RunError};
use super::stopped::{HardwareBreakpoints, StoppedVcpu};
use super::watchdog::StepWatchdog;
use crate::PausedGuard;
use crate::trap::{Trap, TrapHandler};

/// No instruction is longer.
const MAX_INSTRUCTION_BYTES: u64 = 15;

/// How a single step ended.
#[derive(Debug)]
pub enum StepEnd {
    /// The instruction was executed.
    Done,
    /// The vCPU is elsewhere and the instruction has not been completed: it faulted, and the guest is in its handler.
    Diverted,
    /// The machine ended during the step.
    MachineEnded,
}

impl StoppedVcpu<'_> {
    /// Executes the one instruction at RIP. The other vCPUs are paused, as `paused` shows, and interrupts are held
    /// back where KVM can. Guest writes to read-only pages go through `handler` on the way.
    ///
    /// # Errors
    ///
    /// When KVM refuses, or the handler does.
    pub fn step(
        &mut self,
        paused: &PausedGuard<'_>,
        handler: &dyn TrapHandler,
    ) -> Result<StepEnd, RunError> {
        self.abandon_port_write()?;
        // KVM sets TF for the RIP that it knows when it is told to step, and drops it should it find another RIP when
        // it enters the guest: the vCPU would run on until something else stops it.
        self.store_regs()?;
        let (_, breakpoints) = self.shared.breakpoints();
        self.set_debug(&HardwareBreakpoints::default(), true)?;
        let end = self.step_until_done(paused, handler);
        self.set_debug(&breakpoints, false)?;
        end
    }

    fn step_until_done(
        &mut self,
        paused: &PausedGuard<'_>,
        handler: &dyn TrapHandler,
    ) -> Result<StepEnd, RunError> {
        let before = self.regs()?;
        let from = before.rip;
        let left_over = self.shared.facts.step_left_over;
        let mut repeated = false;
        // The instruction has left the guest on the way.
        let mut left_guest = false;
        let _watchdog = StepWatchdog::start();
        // KVM has exited for something that the instruction does. It may have moved RIP on already, and then has no
        // debug exit to give: entered as usual, the guest would execute the next instruction as well.
        let mut exited = false;
        loop {
            let completing = std::mem::replace(&mut exited, false);
            let left = if completing {
                self.complete_exit()?
            } else {
                self.enter()?
            };
            match left {
                // The #DB of an instruction that left the guest for a page that KVM had yet to map comes before it.
                Left::Stepped if left_over && !repeated && self.regs()? == before => {
                    repeated = true;
                }
                Left::Stepped => {
                    if left_over && left_guest {
                        self.take_left_over()?;
                    }
                    return Ok(StepEnd::Done);
                }
                Left::Ended(end) => {
                    self.shared.ending.end(end);
                    return Ok(StepEnd::MachineEnded);
                }
                Left::Handled => {
                    exited = true;
                    left_guest = true;
                }
                Left::Interrupted => {
                    if self.regs()?.rip != from {
                        return Ok(if completing {
                            StepEnd::Done
                        } else {
                            StepEnd::Diverted
                        });
                    }
                }
                Left::Trapped(trap @ Trap::GuestWrite { .. }, otherwise)
                | Left::Trapped(trap @ Trap::MsrWrite { .. }, otherwise) => {
                    if let Some(end) = self.answer(handler, trap, otherwise, Some(paused))? {
                        self.shared.ending.end(end);
                        return Ok(StepEnd::MachineEnded);
                    }
                    exited = true;
                    left_guest = true;
                }
                Left::Trapped(trap @ Trap::PortWrite { .. }, otherwise)
                    if self.regs()?.rip.wrapping_sub(from) <= MAX_INSTRUCTION_BYTES =>
                {
                    // The stepped instruction is itself a port write of the guest's. A KVM that has already moved
                    // RIP on has no debug exit to give for it.
                    self.otherwise(trap, otherwise)?;
                    left_guest = true;
                    if self.regs()?.rip != from {
                        return Ok(StepEnd::Done);
                    }
                }
                Left::Trapped(trap @ Trap::Breakpoint { at }, otherwise) if at == from => {
                    // The stepped instruction is a breakpoint of the guest's own. Given back right behind its exit:
                    // KVM injects it with the length that it remembers from there.
                    self.otherwise(trap, otherwise)?;
                    return Ok(StepEnd::Done);
                }
                // The vCPU stands at another plant, in a fault handler: it hits it again when it runs on, since
                // neither registers nor memory have been touched, but for the RIP of a port write.
                Left::Trapped(trap, _) => {
                    if let Trap::PortWrite { at } = trap {
                        let regs = self.regs()?;
                        self.set_regs(&kvm_regs { rip: at, ..regs })?;
                    }
                    return Ok(StepEnd::Diverted);
                }
            }
        }
    }

    /// The step is over, and there is a second #DB for it ([`HostFacts::step_left_over`](crate::HostFacts)): it comes
    /// before the next instruction, as long as the vCPU is still to be stepped.
    fn take_left_over(&mut self) -> Result<(), RunError> {
        while matches!(self.enter()?, Left::Interrupted) {}
        Ok(())
    }

    /// Lets KVM finish what it has exited for, and no more.
    fn complete_exit(&mut self) -> Result<Left, RunError> {
        kick::request(self.fd);
        let left = self.enter();
        // The kick that this clears may have been a real one: whoever sent it is seen before the guest is entered
        // next, or, during a step, is the watchdog, which kicks again.
        kick::clear(self.fd);
        left
    }
}
