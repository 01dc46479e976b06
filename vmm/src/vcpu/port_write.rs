//! A port write that the vCPU has left the guest for: what KVM makes of it at the next entry.
//!
//! KVM exits for an `out` with RIP at the instruction, and moves RIP on when it is entered again, unless RIP is another by
//! then. An `outs` it emulates, and exits with RIP behind the instruction: where a plant may lie, which has not been executed.

use kvm_bindings::kvm_regs;

use super::kick;
use super::stopped::{StoppedVcpu, VcpuError};

impl StoppedVcpu<'_> {
    /// Makes KVM forget a port write that it has exited for, so that the vCPU can be left where it is without having
    /// its RIP moved on. To be called before anything that needs the instruction at RIP to be still to come.
    pub(super) fn abandon_port_write(&mut self) -> Result<(), VcpuError> {
        let Some(stopped_at) = self.port_write.take() else {
            return Ok(());
        };
        let regs = self.regs()?;
        // KVM completes the write at the next entry, and does so only if RIP has not moved: move it, let KVM look,
        // and put it back. No instruction of the guest's is executed.
        self.set_regs(&kvm_regs {
            rip: !stopped_at,
            ..regs
        })?;
        self.complete_port_write()?;
        self.set_regs(&regs)
    }

    /// Whether the port write that the vCPU has left the guest for is that of an `outs` in front of RIP, and not of the
    /// instruction at RIP. Afterwards KVM has no port write to complete any more, and RIP is where it was.
    ///
    /// # Errors
    ///
    /// When KVM refuses to be entered.
    pub fn is_behind_outs(&mut self) -> Result<bool, VcpuError> {
        if self.port_write.take().is_none() {
            return Ok(false);
        }
        let before = self.regs()?;
        self.complete_port_write()?;
        let has_moved = self.regs()?.rip != before.rip;
        if has_moved {
            self.set_regs(&before)?;
        }
        Ok(!has_moved)
    }

    /// Lets KVM do what is left of a port write. No instruction of the guest's is executed.
    fn complete_port_write(&mut self) -> Result<(), VcpuError> {
        kick::request(self.fd);
        let entered = self.fd.run();
        let refused = match entered {
            Err(error) if error.errno() == libc::EINTR => None,
            Err(error) => Some(error),
            Ok(_) => Some(kvm_ioctls::Error::new(libc::EPROTO)),
        };
        // The flag that is cleared may have been set by a kick. The kicker has published its reason before, and the vCPU
        // loop looks for one before it enters the guest.
        kick::clear(self.fd);
        match refused {
            Some(error) => Err(self.failed("KVM_RUN")(error)),
            None => Ok(()),
        }
    }

    /// The vCPU is about to run on after a trap was handled. If it is to execute the instruction at RIP, KVM must not
    /// take it for the port write that has been handled.
    pub(super) fn settle_port_write(&mut self) -> Result<(), VcpuError> {
        match self.port_write {
            None => Ok(()),
            Some(stopped_at) => {
                if self.rip()? == stopped_at {
                    self.abandon_port_write()?;
                }
                Ok(())
            }
        }
    }
}
