//! The port write of the last exit, and its completion by KVM at the next entry.
//!
//! KVM exits for an `out` with RIP at the instruction, and moves RIP on at the next entry, unless RIP has changed by then. KVM
//! emulates an `outs`, and exits with RIP behind the instruction: at that RIP, a plant may lie that has not been executed.

use kvm_bindings::kvm_regs;

use super::error::VcpuError;
use super::kick;
use super::registers::VcpuRegisters;
use super::stopped::StoppedVcpu;

impl StoppedVcpu<'_> {
    /// Makes KVM forget the port write of the last exit: KVM then leaves RIP unchanged at the next entry. Called before any
    /// step that needs the instruction at RIP to be still unexecuted.
    pub(super) fn abandon_port_write(&mut self) -> Result<(), VcpuError> {
        let Some(stopped_at) = self.port_write.take() else {
            return Ok(());
        };
        let regs = self.registers.regs()?;
        // KVM completes the write at the next entry, and only if RIP has not moved: move RIP, let KVM look, and restore
        // RIP. The guest executes no instruction.
        self.registers.set_regs(&kvm_regs {
            rip: !stopped_at.0,
            ..regs
        })?;
        complete_port_write(&mut self.registers)?;
        self.registers.set_regs(&regs)
    }

    /// Whether the port write of the last exit came from an `outs` in front of RIP, not from the instruction at RIP.
    /// Afterwards KVM has no port write to complete any more, and RIP is unchanged.
    ///
    /// # Errors
    ///
    /// When KVM refuses the entry.
    pub fn is_behind_outs(&mut self) -> Result<bool, VcpuError> {
        if self.port_write.take().is_none() {
            return Ok(false);
        }
        let before = self.registers.regs()?;
        complete_port_write(&mut self.registers)?;
        let has_moved = self.registers.regs()?.rip != before.rip;
        if has_moved {
            self.registers.set_regs(&before)?;
        }
        Ok(!has_moved)
    }

    /// Settles the port write before the vCPU resumes after a handled trap. If RIP is unchanged, the vCPU is to execute the
    /// instruction at RIP, and KVM must not mistake the instruction for the handled port write.
    pub(super) fn settle_port_write(&mut self) -> Result<(), VcpuError> {
        match self.port_write {
            None => Ok(()),
            Some(stopped_at) => {
                if self.registers.rip()? == stopped_at {
                    self.abandon_port_write()?;
                }
                Ok(())
            }
        }
    }
}

/// Lets KVM complete a port write. The guest executes no instruction.
fn complete_port_write(registers: &mut VcpuRegisters<'_>) -> Result<(), VcpuError> {
    kick::request(registers.fd);
    registers.forget_registers();
    let entered = registers.fd.run();
    let refused = match entered {
        Err(error) if error.errno() == libc::EINTR => None,
        Err(error) => Some(error),
        Ok(_) => Some(kvm_ioctls::Error::new(libc::EPROTO)),
    };
    // A kick may have set the flag that is cleared here. The kicker has published its reason before, and the vCPU loop
    // checks for a reason before entering the guest.
    kick::clear(registers.fd);
    match refused {
        Some(error) => Err(registers.failed("KVM_RUN")(error)),
        None => Ok(()),
    }
}
