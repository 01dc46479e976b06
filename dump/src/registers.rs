//! The registers of a vCPU in the format of a note.

use vmm::{VcpuState, kvm_segment};

/// The contents of a note NT_PRSTATUS, the kernel's `struct elf_prstatus`. `thread` is the number by which debuggers name the vCPU.
pub(crate) fn prstatus(thread: u32, vcpu: &VcpuState) -> Vec<u8> {
    const SIGNALS_BYTES: usize = 32;
    const IDS_AND_TIMES_BYTES: usize = 112;
    let mut out = vec![0; SIGNALS_BYTES];
    out.extend(thread.to_le_bytes());
    out.resize(IDS_AND_TIMES_BYTES, 0);
    let (regs, sregs) = (&vcpu.regs, &vcpu.sregs);
    let selector = |segment: &kvm_segment| u64::from(segment.selector);
    // The kernel's `struct user_regs_struct`. The second RAX is `orig_rax`: -1 outside a system call.
    for word in [
        regs.r15,
        regs.r14,
        regs.r13,
        regs.r12,
        regs.rbp,
        regs.rbx,
        regs.r11,
        regs.r10,
        regs.r9,
        regs.r8,
        regs.rax,
        regs.rcx,
        regs.rdx,
        regs.rsi,
        regs.rdi,
        u64::MAX,
        regs.rip,
        selector(&sregs.cs),
        regs.rflags,
        regs.rsp,
        selector(&sregs.ss),
        sregs.fs.base,
        sregs.gs.base,
        selector(&sregs.ds),
        selector(&sregs.es),
        selector(&sregs.fs),
        selector(&sregs.gs),
    ] {
        out.extend(word.to_le_bytes());
    }
    // `pr_fpvalid`, and the padding behind.
    out.extend([0; 8]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vcpu() -> VcpuState {
        let mut vcpu = VcpuState::default();
        vcpu.regs.rip = 0xffff_ffff_8112_3456;
        vcpu.regs.rsp = 0xffff_c900_0001_3e00;
        vcpu.sregs.cs.selector = 0x10;
        vcpu
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    /// The offsets are those of `struct elf_prstatus` and `struct user_regs_struct` in the kernel's headers.
    #[test]
    fn prstatus_has_the_registers_where_the_kernel_has_them() {
        let vcpu = vcpu();
        let note = prstatus(3, &vcpu);
        assert_eq!(note.len(), 336);
        assert_eq!(note[32..36], 3_u32.to_le_bytes());
        assert_eq!(word(&note, 112 + 16 * 8), vcpu.regs.rip);
        assert_eq!(word(&note, 112 + 17 * 8), 0x10);
        assert_eq!(word(&note, 112 + 19 * 8), vcpu.regs.rsp);
    }
}
