//! A stopped vCPU, as far as its stack and its task depend on it.

use introspect::orc::StartRegisters;
use thiserror::Error;

/// What a vCPU executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuMode {
    /// Nothing in 64-bit mode: the guest has not started the vCPU, or has reset it.
    NotStarted,
    /// A program.
    User,
    /// The kernel.
    Kernel,
}

/// A vCPU that does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedVcpu {
    /// What the vCPU executes.
    pub mode: VcpuMode,
    /// The registers that an unwinding starts with.
    pub registers: StartRegisters,
    /// The bases that `gs` may have in the kernel, the likeliest first. In a program and in entry code, the kernel's base is put aside.
    pub gs_bases: Vec<u64>,
}

/// Why a vCPU has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the guest has not started the vCPU")]
pub struct NotStarted;
