//! Where a vCPU can be after the instruction that it stands at, and with which page tables.

use introspect::PagingState;
use introspect::insn::{self, Decoded, Features, Next};

use super::cpu::VcpuCpu;
use crate::guest::{GuestError, GuestMemory, Vcpu};
use crate::plant::Planter;

/// See [`insn::next_places`] and [`insn::tables_after`]. `regs` and `state` are those of the vCPU.
pub(crate) fn next_places(
    vcpu: &mut dyn Vcpu,
    regs: vmm::kvm_regs,
    memory: &dyn GuestMemory,
    planter: &Planter,
    features: Features,
    decoded: &Decoded,
    state: PagingState,
) -> Result<(Vec<Next>, Option<PagingState>), GuestError> {
    let mut cpu = VcpuCpu::new(vcpu, regs, memory, planter, features);
    let places = insn::next_places(&mut cpu, decoded);
    let tables = insn::tables_after(&cpu, decoded, state);
    match cpu.failure() {
        Some(error) => Err(error),
        None => Ok((places, tables)),
    }
}
