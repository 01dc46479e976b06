//! The vCPU loop: enter the guest, let the trap handler answer the exit, carry out the default action.

use std::time::Duration;

use address::Gva;
use kvm_bindings::{KVM_MP_STATE_HALTED, KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_UNINITIALIZED};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use super::debug_setup::{Debugging, HardwareBreakpoints};
use super::error::{RunError, VcpuError};
use super::exit::{DefaultAction, VmExit};
use super::kick;
use super::kvm_run;
use super::registers::VcpuRegisters;
use super::rips::Stand;
use super::stopped::StoppedVcpu;
use crate::machine::ending::End;
use crate::machine::shared::{PausedGuard, Shared};
use crate::trap::{Trap, TrapOutcome};
use crate::trap_handler::TrapHandler;

const RFLAGS_IF: u64 = 1 << 9;
/// A processor begins here after a reset or an INIT, unless it waits for a start-up IPI.
const RESET_VECTOR: Gva = Gva(0xffff_fff0);
/// The period after which a vCPU that waits for room checks whether the machine ends.
const ROOM_LOOK: Duration = Duration::from_millis(100);

/// Runs vCPU `index` on the calling thread until the machine ends.
pub(crate) fn run(fd: &mut VcpuFd, index: usize, shared: &Shared, handler: &dyn TrapHandler) {
    let alive = Alive(shared);
    let registration = kick::Registration::new(fd, shared.ending.target(index));
    let mut vcpu = StoppedVcpu {
        registers: VcpuRegisters::new(fd, index, shared.sync_regs),
        shared,
        port_write: None,
        left_at: None,
        debugging: Debugging::default(),
    };
    let end = vcpu.run_until_end(handler);
    // A dump of the ended machine has the last registers. If KVM refuses, the dump has the registers of the last pause.
    let _ = vcpu.publish_registers();
    drop(registration);
    shared.ending.end(end);
    drop(alive);
}

/// Removes the thread from the gate's count on drop, also after a panic: no pause waits for a panicked thread.
struct Alive<'a>(&'a Shared);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}

impl StoppedVcpu<'_> {
    fn run_until_end(&mut self, handler: &dyn TrapHandler) -> End {
        let mut breakpoints = (0, HardwareBreakpoints::default());
        if let Err(error) = self.set_debug(&breakpoints.1, false) {
            return End::Failed(error.into());
        }
        loop {
            let (shared, mut said) = (self.shared, Ok(()));
            shared.gate.checkpoint(|| said = self.prepare_to_park());
            if let Err(error) = said {
                return End::Failed(error.into());
            }
            if self.shared.ending.is_ending() {
                return End::Stopped;
            }
            if !handler.has_room() {
                if let Err(error) = self.prepare_to_park() {
                    return End::Failed(error.into());
                }
                shared.gate.parked(|| handler.await_room(ROOM_LOOK));
                continue;
            }
            if let Some(changed) = self.shared.breakpoints_since(breakpoints.0) {
                breakpoints = changed;
                if let Err(error) = self.set_debug(&breakpoints.1, false) {
                    return End::Failed(error.into());
                }
            }
            let exit = match self.enter() {
                Ok(exit) => exit,
                Err(error) => return End::Failed(error),
            };
            self.note_halt(&exit);
            match exit {
                VmExit::Handled | VmExit::Interrupted => (),
                VmExit::Ended(end) => return end,
                VmExit::Trapped(trap, action) => match self.answer(handler, trap, action, None) {
                    Ok(None) => (),
                    Ok(Some(end)) => return end,
                    Err(error) => return End::Failed(error),
                },
            }
        }
    }

    /// Prepares the vCPU for parking. Other threads may change guest text meanwhile: cancels an interrupted `int3`, and
    /// publishes the registers for the other threads.
    fn prepare_to_park(&mut self) -> Result<(), VcpuError> {
        self.cancel_interrupted_int3()?;
        self.publish_registers()
    }

    /// Publishes the general registers and the NMI state of the vCPU for other threads, for the time while the vCPU is parked.
    fn publish_registers(&mut self) -> Result<(), VcpuError> {
        let regs = self.registers.regs()?;
        let in_nmi = self.registers.blocking()?.nmis;
        self.shared
            .rips
            .say(self.registers.index, Stand { regs, in_nmi });
        Ok(())
    }

    /// Records whether the vCPU waits for an event that can never come: the kick interrupted a `hlt` with interrupts off, or
    /// the guest has never started the vCPU.
    fn note_halt(&mut self, exit: &VmExit) {
        let halted = matches!(exit, VmExit::Interrupted)
            && match self.registers.fd.get_mp_state().map(|state| state.mp_state) {
                Ok(KVM_MP_STATE_UNINITIALIZED | KVM_MP_STATE_INIT_RECEIVED) => true,
                Ok(KVM_MP_STATE_HALTED) => self
                    .registers
                    .regs()
                    .is_ok_and(|regs| regs.rflags & RFLAGS_IF == 0),
                _ => false,
            };
        self.shared.note_halt(self.registers.index, halted);
    }

    /// Passes a trap to the handler, and carries out the outcome. `held` is the pause that the vCPU already holds, if any.
    /// `Some` ends the run.
    pub(crate) fn answer(
        &mut self,
        handler: &dyn TrapHandler,
        trap: Trap,
        action: DefaultAction,
        held: Option<&PausedGuard<'_>>,
    ) -> Result<Option<End>, RunError> {
        let mut outcome = handler.on_trap(self, trap)?;
        if outcome == TrapOutcome::Exclusive {
            outcome = match held {
                Some(paused) => handler.on_exclusive(self, paused, trap)?,
                None => {
                    let shared = self.shared;
                    // The vCPU counts as parked while waiting.
                    self.publish_registers()?;
                    let paused = shared.pause_others(self.registers.index);
                    handler.on_exclusive(self, &paused, trap)?
                }
            };
        }
        match outcome {
            TrapOutcome::Resume => {
                self.settle_port_write()?;
                Ok(None)
            }
            TrapOutcome::Stop => Ok(Some(End::Stopped)),
            // `Exclusive` from `on_exclusive`: the vCPU is already exclusive, so the default action follows.
            TrapOutcome::Reinject | TrapOutcome::Exclusive => {
                self.take_default(trap, action).map(|()| None)
            }
        }
    }

    /// Carries out the default action of a trap.
    pub(crate) fn take_default(
        &mut self,
        trap: Trap,
        action: DefaultAction,
    ) -> Result<(), RunError> {
        match (action, trap) {
            (DefaultAction::Breakpoint { at }, _) => self.reinject_breakpoint(at)?,
            (DefaultAction::Port { port, byte }, _) => {
                self.shared.platform.ports.write(port, 1, &[byte])
            }
            (DefaultAction::Memory, Trap::GuestWrite { gpa, bytes, len }) => self
                .shared
                .memory
                .guest()
                .write_slice(&bytes[..len.min(8)], GuestAddress(gpa.0))
                .map_err(|source| RunError::Memory { gpa, source })?,
            (DefaultAction::Msr, Trap::MsrWrite { index, value }) => {
                self.registers.complete_msr_write(index, value)?;
            }
            (DefaultAction::Fail, _) => return Err(emulation_failure(&mut self.registers)?),
            (DefaultAction::Fault, _) => {
                let source = kvm_ioctls::Error::new(libc::EFAULT);
                return Err(self.registers.failed("KVM_RUN")(source).into());
            }
            (DefaultAction::Continue | DefaultAction::Memory | DefaultAction::Msr, _) => (),
        }
        Ok(())
    }
}

/// Finds the reason of an emulation failure. Outside the machine's memory, KVM cannot even read the instruction.
fn emulation_failure(registers: &mut VcpuRegisters<'_>) -> Result<RunError, VcpuError> {
    let (rip, vcpu) = (registers.rip()?, registers.index);
    let cs = registers.sregs()?.cs;
    let is_in_smm = kvm_run::is_in_smm(registers.fd);
    Ok(match (is_in_smm, rip.wrapping_add(cs.base)) {
        (true, _) => RunError::SystemManagement { vcpu },
        (false, RESET_VECTOR) => RunError::NoFirmware { vcpu },
        (false, _) => RunError::EmulationFailure {
            rip,
            bytes: kvm_run::failed_instruction(registers.fd).to_vec(),
        },
    })
}
