//! Plain instructions: they work only on general registers, the flags and the stack.
//!
//! A plain instruction has the same effect at any address, in any processor state. Its only
//! exception is for want of a stack, and the original raises the same exception. Only known
//! instructions are on the list; all others are not plain.

use iced_x86::{FlowControl, Mnemonic, OpKind, Register};

use super::decode::Decoded;

/// Whether `decoded` is plain.
#[must_use]
pub fn is_plain(decoded: &Decoded) -> bool {
    let insn = decoded.instruction();
    if insn.flow_control() != FlowControl::Next || insn.has_lock_prefix() {
        return false;
    }
    let mnemonic = insn.mnemonic();
    // The memory operand is an address, not accessed.
    let is_lea = mnemonic == Mnemonic::Lea && !insn.is_ip_rel_memory_operand();
    let is_nop = mnemonic == Mnemonic::Nop && !insn.is_ip_rel_memory_operand();
    if is_lea || is_nop {
        return true;
    }
    let is_general = |operand: u32| match insn.op_kind(operand) {
        OpKind::Register => {
            let register = insn.op_register(operand);
            register.is_gpr() && register.full_register() != Register::RSP
        }
        OpKind::Memory => false,
        _ => true,
    };
    let moves_stack = is_stack_arithmetic(mnemonic);
    let is_operand = |operand: u32| {
        let is_stack =
            insn.op_kind(operand) == OpKind::Register && insn.op_register(operand) == Register::RSP;
        is_general(operand) || (moves_stack && is_stack)
    };
    is_known(mnemonic) && (0..insn.op_count()).all(is_operand)
}

/// Whether the bytes of `decoded` mean the same at another address: no operand is relative to RIP,
/// and the next executed instruction is always the instruction behind.
#[must_use]
pub fn is_position_independent(decoded: &Decoded) -> bool {
    let insn = decoded.instruction();
    insn.flow_control() == FlowControl::Next && !insn.is_ip_rel_memory_operand()
}

/// Arithmetic on the stack pointer at the beginning and end of functions.
const fn is_stack_arithmetic(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Add | M::Sub | M::And | M::Mov | M::Push)
}

#[rustfmt::skip]
const fn is_known(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Mov | M::Movzx | M::Movsx | M::Movsxd | M::Push | M::Pop | M::Xchg | M::Bswap
        | M::Add | M::Sub | M::Adc | M::Sbb | M::And | M::Or | M::Xor | M::Cmp | M::Test
        | M::Inc | M::Dec | M::Neg | M::Not | M::Imul
        | M::Shl | M::Shr | M::Sar | M::Rol | M::Ror
        | M::Cbw | M::Cwde | M::Cdqe | M::Cwd | M::Cdq | M::Cqo
        | M::Cmova | M::Cmovae | M::Cmovb | M::Cmovbe | M::Cmove | M::Cmovg | M::Cmovge | M::Cmovl
        | M::Cmovle | M::Cmovne | M::Cmovno | M::Cmovnp | M::Cmovns | M::Cmovo | M::Cmovp | M::Cmovs
        | M::Seta | M::Setae | M::Setb | M::Setbe | M::Sete | M::Setg | M::Setge | M::Setl
        | M::Setle | M::Setne | M::Setno | M::Setnp | M::Setns | M::Seto | M::Setp | M::Sets
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::decode;
    use address::Gva;

    fn of(bytes: &[u8]) -> bool {
        let decoded = decode(bytes, Gva(0xffff_ffff_8100_0000)).expect("an instruction");
        assert_eq!(decoded.len(), bytes.len());
        is_plain(&decoded)
    }

    #[test]
    fn usual_first_instructions_are_plain() {
        for bytes in [
            &[0x0f, 0x1f, 0x44, 0, 0][..],         // nop [rax + rax]
            &[0x55],                               // push rbp
            &[0x41, 0x57],                         // push r15
            &[0x5d],                               // pop rbp
            &[0x48, 0x89, 0xe5],                   // mov rbp, rsp
            &[0x48, 0x83, 0xec, 0x18],             // sub rsp, 0x18
            &[0x48, 0x81, 0xec, 0, 1, 0, 0],       // sub rsp, 0x100
            &[0x48, 0x83, 0xe4, 0xf0],             // and rsp, ~15
            &[0xb8, 1, 0, 0, 0],                   // mov eax, 1
            &[0x48, 0xc7, 0xc0, 1, 0, 0, 0],       // mov rax, 1
            &[0x31, 0xc0],                         // xor eax, eax
            &[0x0f, 0xb6, 0xff],                   // movzx edi, dil
            &[0x48, 0x8d, 0x84, 0xb7, 0, 1, 0, 0], // lea rax, [rdi + rsi * 4 + 0x100]
            &[0x68, 0, 1, 0, 0],                   // push 0x100
            &[0x48, 0x0f, 0x44, 0xc7],             // cmove rax, rdi
            &[0x48, 0x98],                         // cdqe
        ] {
            assert!(of(bytes), "{bytes:02x?}");
        }
    }

    #[test]
    fn relative_instructions_are_not_position_independent() {
        let independent = |bytes: &[u8]| {
            let decoded = decode(bytes, Gva(0xffff_ffff_8100_0000)).expect("an instruction");
            is_position_independent(&decoded)
        };
        // mov rax, [rdi + 0x60]; mov rax, gs:[0x1000]
        assert!(independent(&[0x48, 0x8b, 0x47, 0x60]));
        assert!(independent(&[0x65, 0x48, 0x8b, 0x04, 0x25, 0, 0x10, 0, 0]));
        for bytes in [
            &[0x48, 0x8b, 0x05, 0, 0, 0, 0][..],   // mov rax, [rip]
            &[0x67, 0x48, 0x8b, 0x05, 0, 0, 0, 0], // mov rax, [eip]
            &[0xe8, 0, 0, 0, 0],                   // call
            &[0x0f, 0x84, 0, 0, 0, 0],             // je
            &[0xc3],                               // ret
        ] {
            assert!(!independent(bytes), "{bytes:02x?}");
        }
    }

    #[test]
    fn faulting_branching_and_system_instructions_are_not_plain() {
        for bytes in [
            &[0x48, 0x8b, 0x07][..],         // mov rax, [rdi]
            &[0x48, 0x8d, 0x05, 0, 0, 0, 0], // lea rax, [rip]
            &[0x0f, 0x1f, 0x05, 0, 0, 0, 0], // nop [rip]
            &[0xff, 0x37],                   // push [rdi]
            &[0x5c],                         // pop rsp
            &[0x48, 0x94],                   // xchg rax, rsp
            &[0x8e, 0xd0],                   // mov ss, eax
            &[0x8c, 0xd8],                   // mov eax, ds
            &[0x0f, 0x22, 0xd8],             // mov cr3, rax
            &[0x0f, 0xa1],                   // pop fs
            &[0x9d],                         // popfq
            &[0xfb],                         // sti
            &[0xfa],                         // cli
            &[0xf4],                         // hlt
            &[0xcc],                         // int3
            &[0xc3],                         // ret
            &[0xe8, 0, 0, 0, 0],             // call
            &[0xe9, 0, 0, 0, 0],             // jmp
            &[0x0f, 0x84, 0, 0, 0, 0],       // je
            &[0xf3, 0x0f, 0x1e, 0xfa],       // endbr64
            &[0xf7, 0xf1],                   // div ecx
            &[0xf3, 0x90],                   // pause
            &[0x0f, 0xa2],                   // cpuid
            &[0x66, 0x0f, 0xef, 0xc1],       // pxor xmm0, xmm1
        ] {
            assert!(!of(bytes), "{bytes:02x?}");
        }
    }
}
