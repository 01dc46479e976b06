//! A #BP that is under way when the vCPU leaves the guest.
//!
//! There are two kinds, and KVM does not report either: for #BP, `KVM_GET_VCPU_EVENTS` always says that nothing is injected
//! or pending, because its interface has no place for the length of the instruction. The vector alone is told.
//!
//! 1. One that we have injected. It is as good as taken, so KVM has to keep it: [`StoppedVcpu::set_events`] says it anew
//!    whenever events are set.
//! 2. That of an `int3` of the guest's which nobody intercepts, if its delivery found a page that KVM has not mapped. RIP is
//!    still at the `int3`. KVM begins the delivery again at the next entry, whatever the `int3` has become meanwhile, and on
//!    SVM since Linux 6.0 with a frame that leads behind the instruction that is there by then. Before SVM's Linux 6.0 the
//!    instruction is executed again. While the vCPU is parked the `int3` may go, so it has to be that way everywhere. KVM's
//!    answer to "nothing is injected" is to forget the delivery: setting the events that were got does it, and changes
//!    nothing else.

use super::stopped::{BREAKPOINT, StoppedVcpu, VcpuError};
use crate::machine::Int3Exits;

impl StoppedVcpu<'_> {
    /// Makes KVM forget the delivery of an `int3` of the guest's, if one was interrupted: the vCPU executes anew what is at
    /// RIP when it goes on.
    pub(super) fn cancel_interrupted_int3(&mut self) -> Result<(), VcpuError> {
        // Where each int3 exits, the only #BP is one that we have injected.
        if self.shared.int3 == Int3Exits::All || self.injected_breakpoint.is_some() {
            return Ok(());
        }
        let events = self.told_events()?;
        // An SVM may take an int3 for a software interrupt. The vector stays when a delivery is over; then nothing changes.
        if events.exception.nr == BREAKPOINT || events.interrupt.nr == BREAKPOINT {
            self.set_events(events)?;
        }
        Ok(())
    }

    /// The vCPU has left the guest without having executed an instruction for that, or has not entered it. `injected` is
    /// where a #BP was to be delivered at this entry: it is still to come if RIP is the same.
    pub(super) fn keep_injected_breakpoint(
        &mut self,
        injected: Option<u64>,
    ) -> Result<(), VcpuError> {
        if let Some(at) = injected
            && self.rip()? == at
        {
            self.injected_breakpoint = injected;
        }
        Ok(())
    }
}
