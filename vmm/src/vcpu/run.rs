//! The vCPU loop: enter the guest, copy the exit out, let a device or the trap handler answer the exit.

use std::time::Duration;

use kvm_bindings::{
    KVM_INTERNAL_ERROR_EMULATION, KVM_MP_STATE_HALTED, KVM_MP_STATE_INIT_RECEIVED,
    KVM_MP_STATE_UNINITIALIZED,
};
use kvm_ioctls::{VcpuExit, VcpuFd};
use vm_memory::{Bytes, GuestAddress};

use super::debug_setup::{Debugging, HardwareBreakpoints};
use super::debugging::DebugCause;
use super::error::{RunError, VcpuError};
use super::kick;
use super::kvm_run;
use super::registers::VcpuRegisters;
use super::rips::Stand;
use super::stall::LeftAt;
use super::stopped::StoppedVcpu;
use crate::kvm::Int3Delivery;
use crate::machine::ending::End;
use crate::machine::shared::{PausedGuard, Shared};
use crate::trap::{Trap, TrapOutcome};
use crate::trap_handler::TrapHandler;

const RFLAGS_IF: u64 = 1 << 9;
/// A processor begins here after a reset or an INIT, unless it waits for a start-up IPI.
const RESET_VECTOR: u64 = 0xffff_fff0;
/// The period after which a vCPU that waits for room checks whether the machine ends.
const ROOM_LOOK: Duration = Duration::from_millis(100);

/// Why [`StoppedVcpu::enter`] returned.
#[derive(Debug)]
pub(crate) enum Left {
    /// A device answered, or the exit needs no answer.
    Handled,
    /// Kicked.
    Interrupted,
    /// A trap for the trap handler, and the default action if the handler reinjects the trap.
    Trapped(Trap, Otherwise),
    /// The machine ends.
    Ended(End),
}

/// The default action of a trap: the effect of the exit in a guest without probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// #BP for the guest.
    Breakpoint { at: u64 },
    /// A byte for a device.
    Port { port: u16, byte: u8 },
    /// The write takes place.
    Memory,
    /// The MSR is written.
    Msr,
    /// No effect: the debug register or the memory belongs to the VMM.
    Continue,
    /// The run ends with [`RunError::EmulationFailure`].
    Fail,
}

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
            let left = match self.enter() {
                Ok(left) => left,
                Err(error) => return End::Failed(error),
            };
            self.note_halt(&left);
            match left {
                Left::Handled | Left::Interrupted => (),
                Left::Ended(end) => return end,
                Left::Trapped(trap, otherwise) => match self.answer(handler, trap, otherwise, None)
                {
                    Ok(None) => (),
                    Ok(Some(end)) => return end,
                    Err(error) => return End::Failed(error),
                },
            }
        }
    }

    /// Prepares the vCPU for parking. Other threads may change guest text meanwhile: cancels an interrupted `int3`, and
    /// publishes RIP for the other threads.
    fn prepare_to_park(&mut self) -> Result<(), VcpuError> {
        self.cancel_interrupted_int3()?;
        self.say_rip()
    }

    /// Publishes the RIP and the NMI state of the vCPU for other threads, for the time while the vCPU is parked.
    fn say_rip(&mut self) -> Result<(), VcpuError> {
        let rip = self.registers.regs()?.rip;
        let in_nmi = self.registers.blocking()?.nmis;
        self.shared
            .rips
            .say(self.registers.index, Stand { rip, in_nmi });
        Ok(())
    }

    /// Records whether the vCPU waits for an event that can never come: the kick interrupted a `hlt` with interrupts off, or
    /// the guest has never started the vCPU.
    fn note_halt(&mut self, left: &Left) {
        let halted = matches!(left, Left::Interrupted)
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
        otherwise: Otherwise,
        held: Option<&PausedGuard<'_>>,
    ) -> Result<Option<End>, RunError> {
        let mut outcome = handler.on_trap(self, trap)?;
        if outcome == TrapOutcome::Exclusive {
            outcome = match held {
                Some(paused) => handler.on_exclusive(self, paused, trap)?,
                None => {
                    let shared = self.shared;
                    // The vCPU counts as parked while waiting.
                    self.say_rip()?;
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
                self.otherwise(trap, otherwise).map(|()| None)
            }
        }
    }

    /// Carries out the default action of a trap.
    pub(crate) fn otherwise(&mut self, trap: Trap, otherwise: Otherwise) -> Result<(), RunError> {
        match (otherwise, trap) {
            (Otherwise::Breakpoint { at }, _) => self.reinject_breakpoint(at)?,
            (Otherwise::Port { port, byte }, _) => {
                self.shared.platform.ports.write(port, 1, &[byte])
            }
            (Otherwise::Memory, Trap::GuestWrite { gpa, bytes, len }) => self
                .shared
                .memory
                .guest()
                .write_slice(&bytes[..len.min(8)], gpa)
                .map_err(|source| RunError::Memory { gpa: gpa.0, source })?,
            (Otherwise::Msr, Trap::MsrWrite { index, value }) => {
                self.registers.complete_msr_write(index, value)?;
            }
            (Otherwise::Fail, _) => return Err(emulation_failure(&mut self.registers)?),
            (Otherwise::Continue | Otherwise::Memory | Otherwise::Msr, _) => (),
        }
        Ok(())
    }

    /// Reports a stall to the guest, if the vCPU was out of the guest for long. Called right before each entry.
    fn report_stall(&mut self) {
        if let Some(left) = self.left_at
            && left.is_long_ago(LeftAt::now())
        {
            // EINVAL: the vCPU has no kvm-clock, or not yet. The VMM then cannot reach the guest's watchdogs.
            let _ = self.registers.fd.kvmclock_ctrl();
        }
    }

    /// Runs the guest until the next exit. If a device can answer the exit, the device answers.
    pub(crate) fn enter(&mut self) -> Result<Left, RunError> {
        let shared = self.shared;
        self.port_write = None;
        let injected = self.registers.injected_breakpoint.take();
        self.report_stall();
        let entered = self.registers.fd.run();
        self.left_at = Some(LeftAt::now());
        let exit = match entered {
            Ok(exit) => exit,
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                kick::clear(self.registers.fd);
                self.registers.keep_injected_breakpoint(injected)?;
                return Ok(Left::Interrupted);
            }
            Err(source) => {
                return Err(VcpuError {
                    request: "KVM_RUN",
                    vcpu: self.registers.index,
                    source,
                }
                .into());
            }
        };
        match exit {
            VcpuExit::IoOut(port, &[byte]) => {
                let rip = self.registers.rip()?;
                self.port_write = shared.facts.port.is_completed_later().then_some(rip);
                let at = shared.facts.port.instruction(rip);
                Ok(Left::Trapped(
                    Trap::PortWrite { at },
                    Otherwise::Port { port, byte },
                ))
            }
            VcpuExit::IoOut(port, data) => {
                let data = data.to_vec();
                shared.platform.ports.write(
                    port,
                    kvm_run::port_access_bytes(self.registers.fd),
                    &data,
                );
                Ok(Left::Handled)
            }
            VcpuExit::IoIn(port, data) => {
                let data = std::ptr::from_mut(data);
                let size = kvm_run::port_access_bytes(self.registers.fd);
                #[expect(
                    unsafe_code,
                    reason = "the size lies in the mapping that the slice borrows"
                )]
                // SAFETY: the slice lies in this vCPU's kvm_run mapping, and the only other reference to the
                // mapping, taken for `size`, has ended.
                let data = unsafe { &mut *data };
                shared.platform.ports.read(port, size, data);
                Ok(Left::Handled)
            }
            VcpuExit::MmioRead(gpa, data) => {
                shared.platform.mmio.read(gpa, data);
                Ok(Left::Handled)
            }
            VcpuExit::MmioWrite(gpa, data) if shared.memory.contains(GuestAddress(gpa)) => {
                Ok(Left::Trapped(guest_write(gpa, data), Otherwise::Memory))
            }
            VcpuExit::MmioWrite(gpa, data) if shared.is_detour(gpa) => {
                Ok(Left::Trapped(guest_write(gpa, data), Otherwise::Continue))
            }
            VcpuExit::MmioWrite(gpa, data) => {
                shared.platform.mmio.write(gpa, data);
                Ok(Left::Handled)
            }
            VcpuExit::Debug(debug) => Ok(match debug.exception {
                3 => Left::Trapped(
                    Trap::Breakpoint { at: debug.pc },
                    Otherwise::Breakpoint { at: debug.pc },
                ),
                _ => match self.debugging.cause(debug.dr6, debug.pc) {
                    DebugCause::Fired(fired) => Left::Trapped(
                        Trap::HardwareBreakpoint {
                            fired,
                            at: debug.pc,
                        },
                        Otherwise::Continue,
                    ),
                    DebugCause::Guest => {
                        self.reinject_debug(debug.dr6, debug.pc)?;
                        Left::Handled
                    }
                },
            }),
            VcpuExit::X86Wrmsr(write) => {
                *write.error = 0;
                let (index, value) = (write.index, write.data);
                Ok(Left::Trapped(
                    Trap::MsrWrite { index, value },
                    Otherwise::Msr,
                ))
            }
            VcpuExit::IoapicEoi(vector) => {
                shared.platform.ioapic.end_of_interrupt(vector);
                self.registers.keep_injected_breakpoint(injected)?;
                Ok(Left::Handled)
            }
            VcpuExit::Shutdown => Ok(Left::Ended(End::TripleFault)),
            VcpuExit::Intr => {
                self.registers.keep_injected_breakpoint(injected)?;
                Ok(Left::Interrupted)
            }
            VcpuExit::FailEntry(reason, _) => Err(RunError::FailEntry {
                vcpu: self.registers.index,
                reason,
            }),
            VcpuExit::InternalError => self.internal_error(),
            other => {
                let exit = format!("{other:?}");
                let rip = self.registers.regs()?.rip;
                Err(RunError::UnknownExit {
                    vcpu: self.registers.index,
                    rip,
                    exit,
                })
            }
        }
    }

    fn internal_error(&mut self) -> Result<Left, RunError> {
        let rip = self.registers.regs()?.rip;
        let suberror = kvm_run::suberror(self.registers.fd);
        if suberror != KVM_INTERNAL_ERROR_EMULATION {
            let exit = format!("KVM_EXIT_INTERNAL_ERROR, suberror {suberror}");
            return Err(RunError::UnknownExit {
                vcpu: self.registers.index,
                rip,
                exit,
            });
        }
        let is_int3 = kvm_run::failed_instruction(self.registers.fd).first() == Some(&0xcc);
        Ok(
            if is_int3 && self.shared.facts.int3 == Int3Delivery::EmulationFailure {
                Left::Trapped(
                    Trap::Breakpoint { at: rip },
                    Otherwise::Breakpoint { at: rip },
                )
            } else {
                Left::Trapped(Trap::EmulationFailure, Otherwise::Fail)
            },
        )
    }
}

/// Finds the reason of an emulation failure. Outside the machine's memory, KVM cannot even read the instruction.
fn emulation_failure(registers: &mut VcpuRegisters<'_>) -> Result<RunError, VcpuError> {
    let (rip, vcpu) = (registers.regs()?.rip, registers.index);
    let cs = registers.sregs()?.cs;
    let is_in_smm = kvm_run::is_in_smm(registers.fd);
    Ok(match (is_in_smm, cs.base.wrapping_add(rip)) {
        (true, _) => RunError::SystemManagement { vcpu },
        (false, RESET_VECTOR) => RunError::NoFirmware { vcpu },
        (false, _) => RunError::EmulationFailure {
            rip,
            bytes: kvm_run::failed_instruction(registers.fd).to_vec(),
        },
    })
}

fn guest_write(gpa: u64, data: &[u8]) -> Trap {
    let mut bytes = [0; 8];
    let len = data.len().min(8);
    bytes[..len].copy_from_slice(&data[..len]);
    Trap::GuestWrite {
        gpa: GuestAddress(gpa),
        bytes,
        len,
    }
}
