//! An undelivered #BP at a VM exit.
//!
//! Two kinds exist, and KVM reports neither: for #BP, `KVM_GET_VCPU_EVENTS` always reports nothing injected and nothing
//! pending, because its interface has no field for the length of the instruction. KVM reports the vector only.
//!
//! 1. A #BP injected by the VMM. The #BP counts as taken, so KVM has to keep the #BP: [`VcpuRegisters::set_events`] injects the
//!    #BP again whenever events are set.
//! 2. The #BP of a guest `int3` that KVM does not intercept, if the delivery found a page that KVM has not mapped. RIP is
//!    still at the `int3`. KVM repeats the delivery at the next entry, even if other bytes have replaced the `int3` by then.
//!    On SVM since Linux 6.0, the repeated frame points behind the instruction that is at RIP by then. On SVM before Linux 6.0,
//!    the instruction at RIP is executed instead. Other threads may remove the `int3` while the vCPU is parked, so every host
//!    must execute the instruction at RIP. If the VMM sets "nothing injected", KVM forgets the delivery. Setting the events
//!    just read has exactly this effect, and changes nothing else.

use address::Gva;

use super::error::VcpuError;
use super::exception::BREAKPOINT;
use super::registers::VcpuRegisters;
use super::stopped::StoppedVcpu;
use crate::machine::int3_exits::Int3Exits;

impl StoppedVcpu<'_> {
    /// Makes KVM forget an interrupted delivery of a guest `int3`, if any: the resumed vCPU executes the instruction at RIP.
    pub(super) fn cancel_interrupted_int3(&mut self) -> Result<(), VcpuError> {
        // If every int3 exits, the only #BP is an injected #BP.
        if self.shared.int3 == Int3Exits::All || self.registers.injected_breakpoint.is_some() {
            return Ok(());
        }
        let events = self.registers.reported_events()?;
        // An SVM may treat an int3 as a software interrupt. The vector stays after a finished delivery; then nothing changes.
        if events.exception.nr == BREAKPOINT || events.interrupt.nr == BREAKPOINT {
            self.registers.set_events(events)?;
        }
        Ok(())
    }
}

impl VcpuRegisters<'_> {
    /// Keeps an injected #BP, if still undelivered after an entry that failed, or after an exit that no instruction caused.
    /// `injected` is the RIP at which the entry was to deliver the #BP. If RIP is unchanged, the #BP is undelivered.
    pub(super) fn keep_injected_breakpoint(
        &mut self,
        injected: Option<Gva>,
    ) -> Result<(), VcpuError> {
        if let Some(at) = injected
            && self.rip()? == at
        {
            self.injected_breakpoint = injected;
        }
        Ok(())
    }
}
