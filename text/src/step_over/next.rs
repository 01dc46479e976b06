//! The possible addresses of a vCPU behind its present instruction, and the page tables there.

use introspect::PagingState;
use introspect::insn::{self, Decoded, Features, Next};

use super::cpu::VcpuCpu;
use crate::guest::{GuestError, GuestMemory, Vcpu};
use crate::plant::Planter;

/// Calls [`insn::next_places`] and [`insn::tables_after`]. `regs` and `state` are the vCPU's.
pub fn next_places(
    vcpu: &mut dyn Vcpu,
    regs: vmm::kvm_regs,
    memory: &dyn GuestMemory,
    planter: &Planter,
    features: Features,
    decoded: &Decoded,
    state: PagingState,
) -> Result<(Vec<Next>, Option<PagingState>), GuestError> {
    let mut cpu = VcpuCpu::new(vcpu, regs, memory, planter, features);
    cpu.peeks = true;
    let places = insn::next_places(&mut cpu, decoded);
    let tables = insn::tables_after(&cpu, decoded, state);
    match cpu.failure() {
        Some(error) => Err(error),
        None => Ok((places, tables)),
    }
}
