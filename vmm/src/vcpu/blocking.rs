//! Interrupt blocking of a stopped vCPU besides RFLAGS: the interrupt shadow, and masked NMIs.

use kvm_bindings::{
    KVM_VCPUEVENT_VALID_SHADOW, KVM_X86_SHADOW_INT_MOV_SS, KVM_X86_SHADOW_INT_STI, kvm_vcpu_events,
    kvm_vcpu_events__bindgen_ty_1,
};

use super::error::VcpuError;
use super::exception::BREAKPOINT;
use super::registers::VcpuRegisters;

const KVM_INJECTED_BREAKPOINT: kvm_vcpu_events__bindgen_ty_1 = kvm_vcpu_events__bindgen_ty_1 {
    injected: 1,
    nr: BREAKPOINT,
    has_error_code: 0,
    pending: 0,
    error_code: 0,
};

/// Vector of an NMI.
const NMI: u8 = 2;

/// The interrupt shadow: whether the instruction at RIP is protected by the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shadow {
    /// The instruction at RIP is not protected.
    #[default]
    None,
    /// An `sti` has just set IF: no interrupt comes before the instruction at RIP.
    Sti,
    /// SS has just been loaded: neither an interrupt, an NMI nor a debug trap comes before the instruction at RIP.
    MovSs,
}

impl Shadow {
    /// Converts KVM's bits. An SVM has a single shadow for both reasons, and KVM then reports both bits.
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

/// The causes that hold interrupts back from a vCPU, besides IF and the priorities of the local APIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocking {
    /// The interrupt shadow, for a single instruction.
    pub shadow: Shadow,
    /// NMIs are held back, from the delivery of an NMI until the guest's next `iret`.
    pub nmis: bool,
}

impl VcpuRegisters<'_> {
    /// The interrupt blocking. Costs no system call if KVM reports events at each exit ([`kvm_bindings::KVM_CAP_SYNC_REGS`]).
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    pub fn blocking(&mut self) -> Result<Blocking, VcpuError> {
        let events = self.reported_events()?;
        Ok(Blocking {
            shadow: Shadow::from_kvm(events.interrupt.shadow),
            nmis: events.nmi.masked != 0,
        })
    }

    /// Sets the interrupt blocking. Under VT-x, a shadow of `sti` needs IF to be set by the next entry.
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

    /// Ends the interrupt shadow, if any: the covered instruction is done.
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

    /// The vector of the exception or interrupt whose delivery did not finish before the exit, if any: KVM repeats the delivery at the
    /// next entry, in front of the instruction at RIP.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    pub fn undelivered_event(&mut self) -> Result<Option<u8>, VcpuError> {
        let events = self.reported_events()?;
        Ok(undelivered(&events))
    }

    /// The events that KVM has reported with the exit. If KVM reports no events with exits, asks KVM.
    pub(super) fn reported_events(&mut self) -> Result<kvm_vcpu_events, VcpuError> {
        if self.sync_regs {
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

    /// Sets the events: the result of [`VcpuRegisters::events`], changed. Pending NMIs, SMIs and start-up requests stay
    /// unchanged: other vCPUs may have sent new requests meanwhile, which would be lost.
    pub(super) fn set_events(&mut self, mut events: kvm_vcpu_events) -> Result<(), VcpuError> {
        events.flags = KVM_VCPUEVENT_VALID_SHADOW;
        if self.injected_breakpoint.is_some() {
            // KVM does not report the injected #BP, and would forget the #BP.
            events.exception = KVM_INJECTED_BREAKPOINT;
        }
        self.forget_sregs();
        self.fd
            .set_vcpu_events(&events)
            .map_err(self.failed("KVM_SET_VCPU_EVENTS"))?;
        if self.sync_regs {
            self.fd.sync_regs_mut().events = events;
        }
        Ok(())
    }
}

/// See [`VcpuRegisters::undelivered_event`].
fn undelivered(events: &kvm_vcpu_events) -> Option<u8> {
    if events.exception.injected != 0 {
        Some(events.exception.nr)
    } else if events.nmi.injected != 0 {
        Some(NMI)
    } else {
        (events.interrupt.injected != 0).then_some(events.interrupt.nr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undelivered_event_has_its_vector() {
        let mut events = kvm_vcpu_events::default();
        events.interrupt.nr = 0x30;
        events.nmi.pending = 1;
        assert_eq!(undelivered(&events), None);
        events.interrupt.injected = 1;
        assert_eq!(undelivered(&events), Some(0x30));
        events.interrupt.injected = 0;
        events.nmi.injected = 1;
        assert_eq!(undelivered(&events), Some(2));
        events.exception.injected = 1;
        events.exception.nr = 14;
        assert_eq!(undelivered(&events), Some(14));
    }

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
