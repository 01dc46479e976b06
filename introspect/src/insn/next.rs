//! The places where a processor can be after an instruction.
//!
//! To let the hardware execute one instruction and then regain control, the caller puts a stop at
//! each of these places, and at the handlers of the exceptions ([`crate::idt`]).

use address::Gva;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::cpu::{Access, Cpu, Gpr, Segment};
use super::decode::Decoded;
use crate::PagingState;

/// The register with the target of `syscall`.
const MSR_LSTAR: u32 = 0xc000_0082;
/// The register with the target of `sysenter`.
const MSR_SYSENTER_EIP: u32 = 0x176;

/// A place where the processor can be after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At an address.
    At(Gva),
    /// At the address in a model-specific register.
    Msr(u32),
    /// In the handler of a vector, with a frame returning behind the instruction.
    Gate(u8),
}

/// All places where `cpu`, about to execute `decoded`, can be after the instruction.
///
/// Left out are the handlers of exceptions, and places at a lower privilege level (`iret`,
/// `sysret`, `retf` to a program). Unreadable operands give no place: the processor cannot read
/// them either. Call gates are not followed.
#[must_use]
pub fn next_places<C: Cpu + ?Sized>(cpu: &mut C, decoded: &Decoded) -> Vec<Next> {
    use Mnemonic as M;
    let insn = decoded.instruction();
    let behind = Next::At(decoded.next());
    match insn.mnemonic() {
        M::Int => return vec![Next::Gate(insn.immediate8())],
        M::Int3 => return vec![Next::Gate(3)],
        M::Int1 => return vec![Next::Gate(1)],
        M::Syscall => return vec![Next::Msr(MSR_LSTAR)],
        M::Sysenter => return vec![Next::Msr(MSR_SYSENTER_EIP)],
        // Programs.
        M::Sysret | M::Sysretq | M::Sysexit | M::Sysexitq => return Vec::new(),
        M::Retf => return popped(cpu, far_return_bytes(insn), true),
        M::Iret | M::Iretd | M::Iretq => return popped(cpu, far_return_bytes(insn), true),
        M::Ret => return popped(cpu, 8, false),
        _ => (),
    }
    let target = decoded.branch_target().map(Next::At);
    match insn.flow_control() {
        FlowControl::Exception => Vec::new(),
        FlowControl::UnconditionalBranch => target.into_iter().collect(),
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
            std::iter::once(behind).chain(target).collect()
        }
        FlowControl::Call if target.is_some() => target.into_iter().collect(),
        FlowControl::IndirectBranch | FlowControl::IndirectCall => {
            indirect(cpu, insn).map(Next::At).into_iter().collect()
        }
        // `Call`s to a hypervisor, which come back, are among the others.
        _ => vec![behind],
    }
}

/// The control registers after `decoded`; `None` if `decoded` changes no control register of
/// address translation. Changes of EFER are ignored.
#[must_use]
pub fn tables_after<C: Cpu + ?Sized>(
    cpu: &C,
    decoded: &Decoded,
    state: PagingState,
) -> Option<PagingState> {
    let insn = decoded.instruction();
    if insn.mnemonic() != Mnemonic::Mov || !insn.op0_register().is_cr() {
        return None;
    }
    let value = cpu.gpr(Gpr::ALL[insn.op1_register().number() & 15]);
    match insn.op0_register() {
        Register::CR0 => Some(PagingState {
            cr0: value,
            ..state
        }),
        Register::CR3 => Some(state.with_cr3(value)),
        Register::CR4 => Some(PagingState {
            cr4: value,
            ..state
        }),
        _ => None,
    }
}

/// The size in bytes of the stack slots of RIP and CS.
fn far_return_bytes(insn: &Instruction) -> usize {
    match insn.code() {
        Code::Retfw | Code::Retfw_imm16 | Code::Iretw => 2,
        Code::Retfd | Code::Retfd_imm16 | Code::Iretd => 4,
        _ => 8,
    }
}

/// The RIP popped by a return with stack slots of `bytes`; empty for a return to a program.
fn popped<C: Cpu + ?Sized>(cpu: &mut C, bytes: usize, far: bool) -> Vec<Next> {
    let rsp = Gva(cpu.gpr(Gpr::Rsp));
    if far {
        let selector = read(cpu, rsp.wrapping_add(bytes as u64), 2);
        let level = cpu.privilege_level().ok().map(u64::from);
        if selector.map(|selector| selector & 3) != level {
            return Vec::new();
        }
    }
    let target = read(cpu, rsp, bytes);
    target.map(|to| Next::At(Gva(to))).into_iter().collect()
}

fn indirect<C: Cpu + ?Sized>(cpu: &mut C, insn: &Instruction) -> Option<Gva> {
    if insn.op0_kind() == OpKind::Register {
        return value(cpu, insn.op0_register()).map(Gva);
    }
    let bytes = match insn.code() {
        Code::Jmp_m1616 | Code::Call_m1616 => 2,
        Code::Jmp_m1632 | Code::Call_m1632 => 4,
        _ => 8,
    };
    let at = insn.virtual_address(0, 0, |register, _, _| value(cpu, register))?;
    read(cpu, Gva(at), bytes).map(Gva)
}

/// The value of a register that is part of an address.
pub(super) fn value<C: Cpu + ?Sized>(cpu: &mut C, register: Register) -> Option<u64> {
    match register {
        Register::FS => cpu.segment_base(Segment::Fs).ok(),
        Register::GS => cpu.segment_base(Segment::Gs).ok(),
        _ if register.is_segment_register() => Some(0),
        _ if register.is_gpr() => {
            let full = cpu.gpr(Gpr::ALL[register.full_register().number() & 15]);
            match register.size() {
                8 => Some(full),
                4 => Some(full & 0xffff_ffff),
                _ => None,
            }
        }
        _ => None,
    }
}

fn read<C: Cpu + ?Sized>(cpu: &mut C, at: Gva, bytes: usize) -> Option<u64> {
    let mut value = [0; 8];
    cpu.read(at, &mut value[..bytes], Access::Read).ok()?;
    Some(u64::from_le_bytes(value))
}
