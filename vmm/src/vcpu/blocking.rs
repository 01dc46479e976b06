//! What holds interrupts back from a stopped vCPU besides its flags, and whether it waits for one.

use kvm_bindings::{
    KVM_MP_STATE_HALTED, KVM_VCPUEVENT_VALID_SHADOW, KVM_X86_SHADOW_INT_MOV_SS,
    KVM_X86_SHADOW_INT_STI, kvm_mp_state, kvm_vcpu_events, kvm_vcpu_events__bindgen_ty_1,
};

use super::stopped::{BREAKPOINT, StoppedVcpu, VcpuError};

const KVM_INJECTED_BREAKPOINT: kvm_vcpu_events__bindgen_ty_1 = kvm_vcpu_events__bindgen_ty_1 {
    injected: 1,
    nr: BREAKPOINT,
    has_error_code: 0,
    pending: 0,
    error_code: 0,
};

/// The interrupt shadow: whether the instruction at RIP is protected by the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shadow {
    /// It is not.
    #[default]
    None,
    /// An `sti` has just set IF: no interrupt comes before the instruction at RIP.
    Sti,
    /// SS has just been loaded: neither an interrupt, an NMI nor a debug trap comes before the instruction at RIP.
    MovSs,
}

impl Shadow {
    /// As KVM tells it. An SVM has one shadow for both reasons, and KVM tells both.
    fn from_kvm(bits: u8) -> Self {
        match u32::from(bits) {
            0 => Self::None,
            KVM_X86_SHADOW_INT_MOV_SS => Self::MovSs,
            _ => Self::Sti,
        }
    }

    fn to_kvm(self) -> u8 {
        #[expect(clippy::cast_possible_truncation, reason = "two bits")]
        match self {
            Self::None => 0,
            Self::Sti => KVM_X86_SHADOW_INT_STI as u8,
            Self::MovSs => KVM_X86_SHADOW_INT_MOV_SS as u8,
        }
    }
}

/// What holds interrupts back from a vCPU, besides IF and the priorities of its local APIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocking {
    /// For one instruction.
    pub shadow: Shadow,
    /// NMIs, from the delivery of one until the guest's next `iret`.
    pub nmis: bool,
}

impl StoppedVcpu<'_> {
    /// What holds interrupts back. Costs no system call where KVM tells at each exit ([`kvm_bindings::KVM_CAP_SYNC_REGS`]).
    ///
    /// # Errors
    ///
    /// When KVM refuses to tell.
    pub fn blocking(&mut self) -> Result<Blocking, VcpuError> {
        let events = self.told_events()?;
        Ok(Blocking {
            shadow: Shadow::from_kvm(events.interrupt.shadow),
            nmis: events.nmi.masked != 0,
        })
    }

    /// Sets what holds interrupts back. Under VT-x a shadow of `sti` needs IF to be set by the time that the guest is
    /// entered.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn set_blocking(&mut self, blocking: Blocking) -> Result<(), VcpuError> {
        let mut events = self.events()?;
        events.interrupt.shadow = blocking.shadow.to_kvm();
        events.nmi.masked = u8::from(blocking.nmis);
        self.set_events(events)
    }

    /// Ends the interrupt shadow, if there is one: the instruction that it covered is done.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn end_shadow(&mut self) -> Result<(), VcpuError> {
        let blocking = self.blocking()?;
        if blocking.shadow == Shadow::None {
            return Ok(());
        }
        self.set_blocking(Blocking {
            shadow: Shadow::None,
            ..blocking
        })
    }

    /// The vCPU waits, at the RIP it has, until it is interrupted, as behind a `hlt`. An interrupt that is pending
    /// already, and let through by IF, ends the wait at once; an interrupt shadow would keep it from doing so.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn halt(&mut self) -> Result<(), VcpuError> {
        self.end_shadow()?;
        self.fd
            .set_mp_state(kvm_mp_state {
                mp_state: KVM_MP_STATE_HALTED,
            })
            .map_err(self.failed("KVM_SET_MP_STATE"))
    }

    /// What KVM has told with the exit, where it does.
    pub(super) fn told_events(&mut self) -> Result<kvm_vcpu_events, VcpuError> {
        if self.shared.sync_regs {
            Ok(self.fd.sync_regs_mut().events)
        } else {
            self.events()
        }
    }

    pub(super) fn events(&mut self) -> Result<kvm_vcpu_events, VcpuError> {
        self.fd
            .get_vcpu_events()
            .map_err(self.failed("KVM_GET_VCPU_EVENTS"))
    }

    /// Sets what [`StoppedVcpu::events`] gave, changed. NMIs, SMIs and start-up requests that are pending are left as
    /// they are: others may have sent some meanwhile, which would be lost.
    pub(super) fn set_events(&mut self, mut events: kvm_vcpu_events) -> Result<(), VcpuError> {
        events.flags = KVM_VCPUEVENT_VALID_SHADOW;
        if self.injected_breakpoint.is_some() {
            // KVM does not report it, and would forget it.
            events.exception = KVM_INJECTED_BREAKPOINT;
        }
        self.fd
            .set_vcpu_events(&events)
            .map_err(self.failed("KVM_SET_VCPU_EVENTS"))?;
        if self.shared.sync_regs {
            self.fd.sync_regs_mut().events = events;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadows_are_kvms() {
        for shadow in [Shadow::None, Shadow::Sti, Shadow::MovSs] {
            assert_eq!(Shadow::from_kvm(shadow.to_kvm()), shadow);
        }
        assert_eq!(Shadow::from_kvm(3), Shadow::Sti);
        assert_eq!(Shadow::Sti.to_kvm(), 2);
        assert_eq!(Shadow::MovSs.to_kvm(), 1);
    }
}
