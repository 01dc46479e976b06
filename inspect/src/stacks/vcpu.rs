//! A stopped vCPU, as far as its stack and its task depend on it.

use introspect::orc::StartRegisters;
use thiserror::Error;

/// What a vCPU executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuMode {
    /// Nothing in 64-bit mode: the guest has not started the vCPU, or has reset it.
    NotStarted,
    /// A program.
    User {
        /// Whether the code is that of a 64-bit program.
        is_long: bool,
    },
    /// The kernel.
    Kernel,
}

impl VcpuMode {
    /// Whether the vCPU executes a program.
    #[must_use]
    pub const fn is_user(self) -> bool {
        matches!(self, Self::User { .. })
    }
}

/// The general registers by their numbers in DWARF (x86-64 psABI, figure 3.36): rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GeneralRegisters(pub [u64; 17]);

impl GeneralRegisters {
    /// The registers that the unwinding of a kernel stack starts with.
    #[must_use]
    pub const fn start(&self) -> StartRegisters {
        let [ax, dx, _, _, _, di, bp, sp, _, _, r10, _, _, r13, _, _, ip] = self.0;
        StartRegisters {
            ip,
            sp,
            bp,
            ax,
            dx,
            di,
            r10,
            r13,
        }
    }
}

/// A vCPU that does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedVcpu {
    /// What the vCPU executes.
    pub mode: VcpuMode,
    /// The registers.
    pub registers: GeneralRegisters,
    /// The bases that `gs` may have in the kernel, the likeliest first. In a program and in entry code, the kernel's base is put aside.
    pub gs_bases: Vec<u64>,
}

/// Why a vCPU has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the guest has not started the vCPU")]
pub struct NotStarted;
