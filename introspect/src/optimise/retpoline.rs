//! Retpolines: calls whose target replaces the return address.
//!
//! ```text
//!   call 1f          the return predictor learns the address of the next instruction
//!   int3             speculation ends here (on some kernels: pause; lfence; jmp)
//! 1: mov [rsp], rax  replaces the return address
//!    ret             branches to the target in rax
//! ```
//!
//! The kernel never returns to the pushed address, so a detour may execute the call from another address. The predictor
//! then learns the address behind the detour's call, and a retpoline stays a retpoline as long as speculation ends there, too.

use address::Gva;
use iced_x86::{Code, OpKind, Register};

use crate::insn::decode;

/// Whether `code`, which lies at `at`, begins with a retpoline.
pub(super) fn is_retpoline(code: &[u8], at: Gva) -> bool {
    let Ok(call) = decode(code, at) else {
        return false;
    };
    if call.instruction().code() != Code::Call_rel32_64 {
        return false;
    }
    let distance = call
        .branch_target()
        .map(|target| target.0.wrapping_sub(at.0));
    let target = distance.and_then(|distance| code.get(usize::try_from(distance).ok()?..));
    target.is_some_and(|code| replaces_return_address(code, at))
}

/// Whether `code` begins with a store of a register to the top of the stack. The effect does not depend on the address `at`.
fn replaces_return_address(code: &[u8], at: Gva) -> bool {
    decode(code, at).is_ok_and(|store| {
        let insn = store.instruction();
        insn.code() == Code::Mov_rm64_r64
            && insn.op0_kind() == OpKind::Memory
            && insn.memory_base() == Register::RSP
            && insn.memory_index() == Register::None
            && insn.memory_displacement64() == 0
            && insn.segment_prefix() == Register::None
            && insn.op1_register() != Register::RSP
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Gva = Gva(0xffff_ffff_8200_0000);
    /// `call 1f; int3; 1: mov [rsp], rax; ret`
    const THUNK: [u8; 11] = [0xe8, 1, 0, 0, 0, 0xcc, 0x48, 0x89, 0x04, 0x24, 0xc3];

    #[test]
    fn call_whose_target_stores_over_the_return_address_is_a_retpoline() {
        assert!(is_retpoline(&THUNK, AT));
        // call 1f; 0: pause; lfence; jmp 0b; 1: mov [rsp], r11
        let looping = [
            0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x4c, 0x89, 0x1c, 0x24,
        ];
        assert!(is_retpoline(&looping, AT));
    }

    #[test]
    fn other_calls_and_other_stores_are_no_retpolines() {
        let with = |change: &[(usize, u8)]| {
            let mut code = THUNK;
            for (offset, byte) in change {
                code[*offset] = *byte;
            }
            code
        };
        let changes: [&[(usize, u8)]; 6] = [
            // A jump pushes nothing.
            &[(0, 0xe9)],
            // The target lies beyond the known code, or before the call.
            &[(1, 0x40)],
            &[(1, 0xf0), (2, 0xff), (3, 0xff), (4, 0xff)],
            // A load of the return address.
            &[(7, 0x8b)],
            // A store to where rax points.
            &[(9, 0x20)],
            // A store of 32 bits.
            &[(6, 0x40)],
        ];
        for change in changes {
            assert!(!is_retpoline(&with(change), AT), "{change:x?}");
        }
        assert!(!is_retpoline(&THUNK[..9], AT));
    }
}
