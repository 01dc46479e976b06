//! Emulates the instruction displaced by a plant, to step over it.

use address::Gva;
use introspect::insn::{
    Access, Decoded, Fault, Features, Outcome, PortAccess, emulate_decoded, port_access,
};

use vmm::{Blocking, Shadow};

use super::cpu::VcpuCpu;
use super::kernel_half::KernelTables;
use crate::guest::{GuestError, GuestMemory, InstructionFault, Vcpu};
use crate::plant::Planter;

/// The result of the emulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The instruction has been emulated: the vCPU is behind it.
    Emulated,
    /// The instruction raises a page fault, not yet injected. The vCPU is at the instruction.
    Faulted(InstructionFault),
    /// The hardware must execute the instruction in place.
    MustStep,
}

const PAGE_FAULT: u8 = 14;
const RFLAGS_TF: u64 = 1 << 8;
/// The resume flag: debug registers do not fire at the next instruction. A debug register of hyprobe may have set the flag.
pub const RFLAGS_RF: u64 = 1 << 16;

/// Page-fault error code bits.
const PF_PROTECTION: u32 = 1;
const PF_WRITE: u32 = 1 << 1;
const PF_USER: u32 = 1 << 2;

/// Emulates the displaced instruction `decoded`, if an exact emulation is possible. First sets RIP to the instruction's address: a plant
/// that is a port write may have moved RIP.
pub fn pass(
    vcpu: &mut dyn Vcpu,
    memory: &dyn GuestMemory,
    planter: &Planter,
    features: Features,
    kernel: Option<KernelTables<'_>>,
    decoded: &Decoded,
) -> Result<Passed, GuestError> {
    let mut regs = vcpu.regs()?;
    regs.rip = decoded.at().0;
    // Every instruction that is executed clears the flag; an instruction that loads the flag sets it later.
    let resume_flag = regs.rflags & RFLAGS_RF;
    regs.rflags &= !RFLAGS_RF;
    if let Some(access) = port_access(decoded) {
        return pass_port_access(vcpu, regs, decoded, access);
    }
    let mut cpu = VcpuCpu::new(vcpu, regs, memory, planter, features);
    cpu.kernel = kernel;
    let outcome = emulate_decoded(&mut cpu, decoded);
    let privilege = match outcome {
        Outcome::Fault(_) => cpu.state().map(|state| state.privilege).unwrap_or(0),
        _ => 0,
    };
    if let Some(error) = cpu.failure() {
        return Err(error);
    }
    match outcome {
        Outcome::Done => {
            cpu.finish()?;
            Ok(Passed::Emulated)
        }
        Outcome::Fault(fault) => match page_fault(fault, privilege) {
            Some((address, error_code)) => {
                let mut regs = cpu.regs;
                regs.rflags |= resume_flag;
                vcpu.set_regs(&regs)?;
                Ok(Passed::Faulted(InstructionFault {
                    vector: PAGE_FAULT,
                    error_code,
                    address,
                }))
            }
            None => Ok(Passed::MustStep),
        },
        Outcome::Unsupported(_) => Ok(Passed::MustStep),
    }
}

/// Emulates the port access of the instruction at RIP. A single step would exit in the middle.
fn pass_port_access(
    vcpu: &mut dyn Vcpu,
    mut regs: vmm::kvm_regs,
    decoded: &Decoded,
    access: PortAccess,
) -> Result<Passed, GuestError> {
    let guest_steps = regs.rflags & RFLAGS_TF != 0;
    if guest_steps || vcpu.system_state()?.privilege != 0 {
        // The hardware decides whether ring 3 may access the port.
        return Ok(Passed::MustStep);
    }
    let [dl, dh, ..] = regs.rdx.to_le_bytes();
    let port = access.port.map_or(u16::from_le_bytes([dl, dh]), u16::from);
    let mut rax = regs.rax.to_le_bytes();
    let data = &mut rax[..access.bytes];
    if access.write {
        vcpu.write_port(port, data);
    } else {
        vcpu.read_port(port, data);
        if access.bytes == 4 {
            // Every 32-bit result clears the upper half.
            rax[4..].fill(0);
        }
        regs.rax = u64::from_le_bytes(rax);
    }
    regs.rip = decoded.next().0;
    let blocking = vcpu.blocking()?;
    if blocking.shadow != Shadow::None {
        vcpu.set_blocking(Blocking {
            shadow: Shadow::None,
            ..blocking
        })?;
    }
    vcpu.set_regs(&regs)?;
    Ok(Passed::Emulated)
}

/// The page fault that the hardware would raise; `None` for other faults.
fn page_fault(fault: Fault, privilege: u8) -> Option<(Gva, u32)> {
    let (at, access, protection) = match fault {
        Fault::NotMapped { at, access } => (at, access, 0),
        Fault::Forbidden { at, access } => (at, access, PF_PROTECTION),
        _ => return None,
    };
    let write = if access == Access::Write { PF_WRITE } else { 0 };
    let user = if privilege == 3 { PF_USER } else { 0 };
    Some((at, protection | write | user))
}
