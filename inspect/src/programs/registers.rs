//! The registers of a program.

use introspect::orc::SavedRegisters;

use crate::{KernelView, NotReadable};

/// The size of `struct pt_regs` without what a kernel may append, bytes.
const SAVED_BYTES: usize = 21 * 8;
/// The index of each register of DWARF in `struct pt_regs`, which has never changed: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip.
const SAVED: [usize; 17] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16];
const CS: usize = 17;
/// The number of rsp and of the return address in DWARF.
pub(super) const SP: usize = 7;
pub(super) const IP: usize = 16;
/// The code segment of 64-bit programs (`__USER_CS`).
const LONG_MODE: u64 = 0x33;

/// A program's registers in the numbering of DWARF (`x86-64 psABI`, figure 3.36); `None` for one that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramRegisters {
    pub(super) values: [Option<u64>; 17],
    /// Whether the code is that of a 64-bit program.
    pub(super) is_long: bool,
}

impl ProgramRegisters {
    /// The registers of a vCPU in user mode, by their number in DWARF: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15, rip.
    #[must_use]
    pub fn of_vcpu(values: [u64; 17], is_long: bool) -> Self {
        let values = values.map(Some);
        Self { values, is_long }
    }

    /// The registers that the kernel has saved.
    ///
    /// # Errors
    ///
    /// If the place cannot be read.
    pub fn saved(view: &KernelView<'_>, saved: SavedRegisters) -> Result<Self, NotReadable> {
        let mut words = [None; SAVED_BYTES / 8];
        let (at, range) = match saved {
            SavedRegisters::All(at) => (at, 0..words.len()),
            SavedRegisters::InterruptFrame(at) => (at, SAVED[IP]..SAVED[SP] + 1),
        };
        let mut bytes = vec![0; range.len() * 8];
        view.read(at, &mut bytes)?;
        let (saved, _) = bytes.as_chunks::<8>();
        for (word, saved) in words[range].iter_mut().zip(saved) {
            *word = Some(u64::from_le_bytes(*saved));
        }
        Ok(Self {
            values: SAVED.map(|index| words[index]),
            is_long: words[CS] == Some(LONG_MODE),
        })
    }
}
