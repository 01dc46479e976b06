//! The system registers of a vCPU at a hit, and the walks of its page tables.
//!
//! KVM takes some 3000 instructions for a request for the registers, and no work at a hit changes them: one request serves the filter, the
//! arguments, the task and the stack.

use introspect::Walks;
use text::SystemState;

/// The system registers and the page walks of one hit.
#[derive(Clone, Debug)]
pub(crate) struct HitState {
    /// The registers.
    pub(crate) registers: SystemState,
    /// The walks of the page tables, for all reads of the hit.
    pub(crate) walks: Walks,
}

impl From<SystemState> for HitState {
    fn from(registers: SystemState) -> Self {
        Self {
            registers,
            walks: Walks::new(registers.paging),
        }
    }
}

impl HitState {
    /// Forgets the page tables that the walks remember: memory has been written.
    pub(crate) fn forget_tables(&mut self) {
        self.walks = Walks::new(self.registers.paging);
    }
}
