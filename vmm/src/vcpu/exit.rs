//! A VM exit: KVM's exit becomes a trap and its default action, or a device answers the exit.

use address::{Gpa, Gva};
use kvm_bindings::KVM_INTERNAL_ERROR_EMULATION;
use kvm_ioctls::VcpuExit;
use vm_memory::{Bytes, GuestAddress};

use super::debugging::DebugCause;
use super::error::RunError;
use super::kick;
use super::kvm_run;
use super::stall::LeftAt;
use super::stopped::StoppedVcpu;
use crate::kvm::Int3Delivery;
use crate::machine::ending::End;
use crate::trap::Trap;

/// A VM exit, after KVM and the devices have done their work.
#[derive(Debug)]
pub(crate) enum VmExit {
    /// A device answered, or the exit needs no answer.
    Handled,
    /// Kicked.
    Interrupted,
    /// A trap for the trap handler, and the default action if the handler reinjects the trap.
    Trapped(Trap, DefaultAction),
    /// The machine ends.
    Ended(End),
}

/// The default action of a trap: the effect of the exit in a guest without probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultAction {
    /// #BP for the guest.
    Breakpoint { at: Gva },
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
    /// The run ends with the error of `KVM_RUN`: memory of the guest is not mapped in this process.
    Fault,
}

impl StoppedVcpu<'_> {
    /// Runs the guest until the next exit. If a device can answer the exit, the device answers.
    pub(crate) fn enter(&mut self) -> Result<VmExit, RunError> {
        let shared = self.shared;
        self.port_write = None;
        let injected = self.registers.injected_breakpoint.take();
        self.report_stall();
        self.registers.forget_registers();
        let entered = self.registers.fd.run();
        self.left_at = Some(LeftAt::now());
        let exit = match entered {
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                kick::clear(self.registers.fd);
                self.registers.keep_injected_breakpoint(injected)?;
                return Ok(VmExit::Interrupted);
            }
            entered if shared.has_protected_pages() && is_memory_fault(&entered) => {
                self.registers.keep_injected_breakpoint(injected)?;
                let at = self.registers.rip()?;
                let trap = Trap::ProtectedAccess { at };
                return Ok(VmExit::Trapped(trap, DefaultAction::Fault));
            }
            Ok(exit) => exit,
            Err(source) => return Err(self.registers.failed("KVM_RUN")(source).into()),
        };
        match exit {
            VcpuExit::IoOut(port, &[byte]) => {
                let rip = self.registers.rip()?;
                self.port_write = shared.facts.port.is_completed_later().then_some(rip);
                let at = shared.facts.port.instruction(rip);
                Ok(VmExit::Trapped(
                    Trap::PortWrite { at },
                    DefaultAction::Port { port, byte },
                ))
            }
            VcpuExit::IoOut(port, data) => {
                let data = data.to_vec();
                shared.platform.ports.write(
                    port,
                    kvm_run::port_access_bytes(self.registers.fd),
                    &data,
                );
                Ok(VmExit::Handled)
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
                Ok(VmExit::Handled)
            }
            // KVM's own emulator reads a page without rights for the guest.
            VcpuExit::MmioRead(gpa, data) if shared.memory.contains(Gpa(gpa)) => {
                // An access ends within a page, and RAM is whole pages.
                let _ = shared.memory.guest().read_slice(data, GuestAddress(gpa));
                let (bytes, len) = first_bytes(data);
                let gpa = Gpa(gpa);
                let trap = Trap::GuestRead { gpa, bytes, len };
                Ok(VmExit::Trapped(trap, DefaultAction::Continue))
            }
            VcpuExit::MmioRead(gpa, data) => {
                shared.platform.mmio.read(gpa, data);
                Ok(VmExit::Handled)
            }
            VcpuExit::MmioWrite(gpa, data) if shared.memory.contains(Gpa(gpa)) => {
                let trap = guest_write(Gpa(gpa), data);
                Ok(VmExit::Trapped(trap, DefaultAction::Memory))
            }
            VcpuExit::MmioWrite(gpa, data) if shared.is_detour(Gpa(gpa)) => {
                let trap = guest_write(Gpa(gpa), data);
                Ok(VmExit::Trapped(trap, DefaultAction::Continue))
            }
            VcpuExit::MmioWrite(gpa, data) => {
                shared.platform.mmio.write(gpa, data);
                Ok(VmExit::Handled)
            }
            VcpuExit::Debug(debug) => {
                let (at, dr6) = (Gva(debug.pc), debug.dr6);
                Ok(match debug.exception {
                    3 => VmExit::Trapped(Trap::Breakpoint { at }, DefaultAction::Breakpoint { at }),
                    _ => match self.debugging.cause(dr6, at) {
                        DebugCause::Fired { fired, written } => VmExit::Trapped(
                            Trap::HardwareBreakpoint { fired, written, at },
                            DefaultAction::Continue,
                        ),
                        DebugCause::Guest { written } => {
                            self.reinject_debug(dr6, at)?;
                            let fired = 0;
                            match written {
                                0 => VmExit::Handled,
                                _ => VmExit::Trapped(
                                    Trap::HardwareBreakpoint { fired, written, at },
                                    DefaultAction::Continue,
                                ),
                            }
                        }
                    },
                })
            }
            VcpuExit::X86Wrmsr(write) => {
                *write.error = 0;
                let (index, value) = (write.index, write.data);
                Ok(VmExit::Trapped(
                    Trap::MsrWrite { index, value },
                    DefaultAction::Msr,
                ))
            }
            VcpuExit::IoapicEoi(vector) => {
                shared.platform.ioapic.end_of_interrupt(vector);
                self.registers.keep_injected_breakpoint(injected)?;
                Ok(VmExit::Handled)
            }
            VcpuExit::Shutdown => Ok(VmExit::Ended(End::TripleFault)),
            VcpuExit::Intr => {
                self.registers.keep_injected_breakpoint(injected)?;
                Ok(VmExit::Interrupted)
            }
            VcpuExit::FailEntry(reason, _) => Err(RunError::FailEntry {
                vcpu: self.registers.index,
                reason,
            }),
            VcpuExit::InternalError => self.internal_error(),
            other => {
                let exit = format!("{other:?}");
                let rip = self.registers.rip()?;
                Err(RunError::UnknownExit {
                    vcpu: self.registers.index,
                    rip,
                    exit,
                })
            }
        }
    }

    fn internal_error(&mut self) -> Result<VmExit, RunError> {
        let rip = self.registers.rip()?;
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
                VmExit::Trapped(
                    Trap::Breakpoint { at: rip },
                    DefaultAction::Breakpoint { at: rip },
                )
            } else {
                VmExit::Trapped(Trap::EmulationFailure, DefaultAction::Fail)
            },
        )
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
}

/// Whether KVM could not map memory of the guest: `KVM_RUN` has failed with EFAULT. Some kernels describe the access, and kvm-ioctls then
/// returns an exit.
fn is_memory_fault(entered: &Result<VcpuExit<'_>, kvm_ioctls::Error>) -> bool {
    match entered {
        Ok(exit) => matches!(exit, VcpuExit::MemoryFault { .. }),
        Err(error) => error.errno() == libc::EFAULT,
    }
}

fn guest_write(gpa: Gpa, data: &[u8]) -> Trap {
    let (bytes, len) = first_bytes(data);
    Trap::GuestWrite { gpa, bytes, len }
}

/// The bytes of an access, which has at most 8, and their number.
fn first_bytes(data: &[u8]) -> ([u8; 8], usize) {
    let mut bytes = [0; 8];
    let len = data.len().min(8);
    bytes[..len].copy_from_slice(&data[..len]);
    (bytes, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_fault_is_an_error_or_an_exit() {
        let error = |errno| Err(kvm_ioctls::Error::new(errno));
        let described = VcpuExit::MemoryFault {
            flags: 0,
            gpa: 0x3000,
            size: 4096,
        };
        assert!(is_memory_fault(&Ok(described)));
        assert!(is_memory_fault(&error(libc::EFAULT)));
        assert!(!is_memory_fault(&Ok(VcpuExit::Hlt)));
        assert!(!is_memory_fault(&error(libc::EINTR)));
    }
}
