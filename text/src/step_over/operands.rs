//! The memory that the vCPU's present instruction reads.

use address::Gva;
use introspect::insn::{self, Decoded, Features};

use super::cpu::VcpuCpu;
use crate::guest::{GuestError, GuestMemory, Vcpu};
use crate::plant::Planter;

/// Calls [`insn::read_operands`].
pub fn read_operands(
    vcpu: &mut dyn Vcpu,
    memory: &dyn GuestMemory,
    planter: &Planter,
    features: Features,
    decoded: &Decoded,
) -> Result<Option<Vec<(Gva, usize)>>, GuestError> {
    let regs = vcpu.regs()?;
    let mut cpu = VcpuCpu::new(vcpu, regs, memory, planter, features);
    let reads = insn::read_operands(&mut cpu, decoded);
    match cpu.failure() {
        Some(error) => Err(error),
        None => Ok(reads),
    }
}
