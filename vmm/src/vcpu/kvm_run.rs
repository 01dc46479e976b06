//! The fields of `kvm_run` that kvm-ioctls' exits leave out.
#![expect(unsafe_code, reason = "kvm_run is a union")]

use kvm_bindings::{KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES, KVM_RUN_X86_SMM};
use kvm_ioctls::VcpuFd;

/// Whether the vCPU was in system-management mode at the last exit.
pub(super) fn is_in_smm(fd: &mut VcpuFd) -> bool {
    u32::from(fd.get_kvm_run().flags) & KVM_RUN_X86_SMM != 0
}

/// The width of the port access of the last exit. The data of a repeated access is a multiple of the width.
pub(super) fn port_access_bytes(fd: &mut VcpuFd) -> usize {
    // SAFETY: only called after KVM_EXIT_IO, for which this member of the union is the valid one.
    let size = unsafe { fd.get_kvm_run().__bindgen_anon_1.io.size };
    usize::from(size)
}

/// The kind of the internal error of the last exit.
pub(super) fn suberror(fd: &mut VcpuFd) -> u32 {
    // SAFETY: only called after KVM_EXIT_INTERNAL_ERROR, for which this member of the union is the valid one.
    unsafe { fd.get_kvm_run().__bindgen_anon_1.internal.suberror }
}

/// The bytes of the instruction that KVM failed to emulate; empty if KVM did not report the bytes.
pub(super) fn failed_instruction(fd: &mut VcpuFd) -> &[u8] {
    // SAFETY: only called after KVM_EXIT_INTERNAL_ERROR with suberror KVM_INTERNAL_ERROR_EMULATION, for which these members
    // of the unions are the valid ones. The kernel writes to the mapping during KVM_RUN alone, which needs the borrowed `fd`.
    unsafe {
        let failure = &fd.get_kvm_run().__bindgen_anon_1.emulation_failure;
        if failure.flags & u64::from(KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES) == 0 {
            return &[];
        }
        let instruction = &failure.__bindgen_anon_1.__bindgen_anon_1;
        let len = usize::from(instruction.insn_size).min(instruction.insn_bytes.len());
        &instruction.insn_bytes[..len]
    }
}
