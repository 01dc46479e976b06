//! The registers of a vCPU in the format of a note: written, and read again.

use inspect::stacks::GeneralRegisters;
use vmm::{VcpuState, kvm_segment};

/// The place of the registers in the kernel's `struct elf_prstatus`.
const REGISTERS_AT: usize = 112;
/// The places of [`GeneralRegisters`] in the kernel's `struct user_regs_struct`.
const GENERAL: [usize; 17] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16];

/// The contents of a note NT_PRSTATUS, the kernel's `struct elf_prstatus`. `thread` is the number by which debuggers name the vCPU.
pub(crate) fn prstatus(thread: u32, vcpu: &VcpuState) -> Vec<u8> {
    const SIGNALS_BYTES: usize = 32;
    let mut out = vec![0; SIGNALS_BYTES];
    out.extend(thread.to_le_bytes());
    out.resize(REGISTERS_AT, 0);
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

/// The registers in a note NT_PRSTATUS that stacks need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DumpedRegisters {
    pub(crate) general: GeneralRegisters,
    /// The selector of the code segment.
    pub(crate) cs: u64,
    pub(crate) gs_base: u64,
}

impl DumpedRegisters {
    /// The registers in the contents of the note; `None` if the contents are too short.
    pub(crate) fn of_prstatus(contents: &[u8]) -> Option<Self> {
        // The numbers are places in `struct user_regs_struct`.
        let register = |number: usize| {
            let word = contents.get(REGISTERS_AT + number * size_of::<u64>()..)?;
            Some(u64::from_le_bytes(*word.first_chunk()?))
        };
        let mut general = [0; 17];
        for (value, number) in general.iter_mut().zip(GENERAL) {
            *value = register(number)?;
        }
        Some(Self {
            general: GeneralRegisters(general),
            cs: register(17)?,
            gs_base: register(22)?,
        })
    }
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

    #[test]
    fn written_registers_are_read_again() {
        let mut vcpu = vcpu();
        vcpu.sregs.gs.base = 0xffff_8880_0dc0_0000;
        let regs = &mut vcpu.regs;
        // The numbers of the registers in DWARF.
        let by_number = [
            &mut regs.rax,
            &mut regs.rdx,
            &mut regs.rcx,
            &mut regs.rbx,
            &mut regs.rsi,
            &mut regs.rdi,
            &mut regs.rbp,
            &mut regs.rsp,
            &mut regs.r8,
            &mut regs.r9,
            &mut regs.r10,
            &mut regs.r11,
            &mut regs.r12,
            &mut regs.r13,
            &mut regs.r14,
            &mut regs.r15,
            &mut regs.rip,
        ];
        for (number, register) in (0..).zip(by_number) {
            *register = number;
        }
        let expected = DumpedRegisters {
            general: GeneralRegisters(std::array::from_fn(|number| number as u64)),
            cs: 0x10,
            gs_base: 0xffff_8880_0dc0_0000,
        };
        let note = prstatus(1, &vcpu);
        assert_eq!(DumpedRegisters::of_prstatus(&note), Some(expected));
        assert_eq!(DumpedRegisters::of_prstatus(&note[..200]), None);
    }
}
