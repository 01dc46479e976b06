//! The arguments of a system call, at the entry of the function that the kernel calls for it.
//!
//! The entry code saves the registers of the program in a `struct pt_regs` on the task's kernel stack, and passes the address to
//! `__x64_sys_NAME` in `rdi`. So the arguments are in memory, and the registers of the vCPU are the kernel's own:
//!
//! ```text
//!  rdi ─▶ struct pt_regs   … +0x38 r10   r9   r8   ax   cx   dx   si   di +0x70 …
//!                               arg3  arg5 arg4           arg2 arg1 arg0
//! ```
//!
//! The order of the members is part of the interface to programs (`ptrace`), and does not change.

use address::Gva;

use crate::handler::HitContext;

const FIRST_OFFSET: u64 = 0x38;
const WORDS: usize = 8;
const WORD_BYTES: usize = 8;
/// The index of each argument's register among the [`WORDS`] from `r10` to `di`.
const ARGUMENTS: [usize; 6] = [7, 6, 5, 0, 2, 1];

/// The arguments of a system call, read on the thread of the vCPU with the hit; `None` if the memory cannot be read.
pub(crate) fn arguments(hit: &mut HitContext<'_>) -> Option<[u64; 6]> {
    let mut bytes = [0; WORDS * WORD_BYTES];
    let at = Gva(hit.regs.rdi).wrapping_add(FIRST_OFFSET);
    hit.read(at, &mut bytes).ok()?;
    let (words, _) = bytes.as_chunks::<WORD_BYTES>();
    Some(ARGUMENTS.map(|index| words.get(index).copied().map_or(0, u64::from_le_bytes)))
}

/// Registers with `arguments` where a function has its own.
pub(crate) const fn as_function(regs: &vmm::kvm_regs, arguments: [u64; 6]) -> vmm::kvm_regs {
    let [rdi, rsi, rdx, rcx, r8, r9] = arguments;
    vmm::kvm_regs {
        rdi,
        rsi,
        rdx,
        rcx,
        r8,
        r9,
        ..*regs
    }
}
