//! The registers of a program.

/// The index of each register of DWARF in `struct pt_regs`, which has never changed: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip.
const SAVED: [usize; 17] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16];
const CS: usize = 17;
/// The numbers of rbp, rsp and the return address in DWARF.
pub(super) const BP: usize = 6;
pub(super) const SP: usize = 7;
pub(super) const IP: usize = 16;
/// The code segment of 64-bit programs (`__USER_CS`).
const LONG_MODE: u64 = 0x33;

/// A program's registers in the numbering of DWARF (`x86-64 psABI`, figure 3.36); `None` for one that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramRegisters {
    pub(super) values: [Option<u64>; 17],
    /// Whether the code is that of a 64-bit program.
    pub(super) is_long: bool,
}

impl ProgramRegisters {
    /// The registers of a vCPU in user mode, by their number in DWARF: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip.
    #[must_use]
    pub(crate) fn of_vcpu(values: [u64; 17], is_long: bool) -> Self {
        let values = values.map(Some);
        Self { values, is_long }
    }

    /// The size of `struct pt_regs` without what a kernel may append, bytes.
    pub(super) const SAVED_BYTES: usize = 21 * 8;

    /// The registers in the `struct pt_regs` with these `bytes`; what is missing is not known.
    pub(super) fn saved(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| words.get(index).map(|word| u64::from_le_bytes(*word));
        // With FRED, the upper bits of the word have more than the segment.
        let segment = word(CS).map(|cs| cs & 0xffff);
        Self {
            values: SAVED.map(word),
            is_long: segment == Some(LONG_MODE),
        }
    }
}
