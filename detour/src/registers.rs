//! The registers that programs read.

use manifest::program::Register;

/// The value of `register` in `regs`.
#[must_use]
pub const fn register_value(regs: &vmm::kvm_regs, register: Register) -> u64 {
    match register {
        Register::Rax => regs.rax,
        Register::Rbx => regs.rbx,
        Register::Rcx => regs.rcx,
        Register::Rdx => regs.rdx,
        Register::Rsi => regs.rsi,
        Register::Rdi => regs.rdi,
        Register::Rbp => regs.rbp,
        Register::Rsp => regs.rsp,
        Register::R8 => regs.r8,
        Register::R9 => regs.r9,
        Register::R10 => regs.r10,
        Register::R11 => regs.r11,
        Register::R12 => regs.r12,
        Register::R13 => regs.r13,
        Register::R14 => regs.r14,
        Register::R15 => regs.r15,
        Register::Rflags => regs.rflags,
    }
}
