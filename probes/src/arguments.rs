//! The arguments of a system call, and of a tracepoint, which are in no register.
//!
//! At the entry of a system call, the kernel's entry code has saved the registers of the program in a `struct pt_regs` on the task's kernel stack, and
//! passes the address to `__x64_sys_NAME` in `rdi`. So the arguments are in memory, and the registers of the vCPU are the kernel's own:
//!
//! ```text
//!  rdi ─▶ struct pt_regs   … +0x38 r10   r9   r8   ax   cx   dx   si   di +0x70 …
//!                               arg3  arg5 arg4           arg2 arg1 arg0
//! ```
//!
//! The order of the members is part of the interface to programs (`ptrace`), and does not change.
//!
//! At a tracepoint, no code has computed the arguments: see [`introspect::tracepoints`].

use address::Gva;
use introspect::insn::{Features, Gpr};
use introspect::tracepoints::{ArgumentBlock, NoArguments, Snapshot};
use manifest::ProbeKind;
use text::general_register;

use crate::handler::{AccessError, HitContext};

const FIRST_OFFSET: u64 = 0x38;
const WORDS: usize = 8;
const WORD_BYTES: usize = 8;
/// The index of each argument's register among the [`WORDS`] from `r10` to `di`.
const ARGUMENTS: [usize; 6] = [7, 6, 5, 0, 2, 1];

/// Where the arguments of a probe's site are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArgumentSource {
    /// In the registers of a function's arguments.
    #[default]
    Registers,
    /// In the registers of the program that makes a system call, saved in memory.
    Caller,
    /// In no register yet: a block of code would compute the arguments of a tracepoint.
    Block {
        /// The distance from the site to the block.
        block: i64,
        /// The distance from the site to the pointer to the tracepoint's functions.
        funcs: i64,
    },
}

/// Why arguments cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    /// The registers of the program.
    #[error("the registers of the program cannot be read: {0}")]
    Caller(AccessError),
    /// The block of a tracepoint.
    #[error("the arguments of the tracepoint cannot be computed: {0}")]
    Block(NoArguments),
}

impl ArgumentSource {
    /// The kind of source for a refused probe, which has no site.
    pub(crate) const fn of_kind(kind: ProbeKind) -> Self {
        match kind {
            ProbeKind::Kprobe
            | ProbeKind::Kretprobe
            | ProbeKind::Watch
            | ProbeKind::Uprobe
            | ProbeKind::Uretprobe
            | ProbeKind::Usdt => Self::Registers,
            ProbeKind::Syscall | ProbeKind::Retsyscall => Self::Caller,
            ProbeKind::Tracepoint => Self::Block { block: 0, funcs: 0 },
        }
    }

    /// Whether the registers of the vCPU have the arguments.
    pub(crate) const fn is_registers(self) -> bool {
        matches!(self, Self::Registers)
    }

    /// The arguments, on the thread of the vCPU with the hit; `None` if the registers have them.
    pub(crate) fn read(self, hit: &mut HitContext<'_>) -> Option<Result<[u64; 6], Unread>> {
        match self {
            Self::Registers => None,
            Self::Caller => Some(of_caller(hit).map_err(Unread::Caller)),
            Self::Block { block, funcs } => {
                let site = hit.regs.rip;
                let block = ArgumentBlock {
                    at: Gva(site.wrapping_add_signed(block)),
                    funcs: Gva(site.wrapping_add_signed(funcs)),
                };
                Some(of_block(hit, &block))
            }
        }
    }
}

fn of_caller(hit: &mut HitContext<'_>) -> Result<[u64; 6], AccessError> {
    let mut bytes = [0; WORDS * WORD_BYTES];
    let at = Gva(hit.regs.rdi).wrapping_add(FIRST_OFFSET);
    hit.read(at, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<WORD_BYTES>();
    let word = |index: usize| words.get(index).copied().map_or(0, u64::from_le_bytes);
    Ok(ARGUMENTS.map(word))
}

fn of_block(hit: &mut HitContext<'_>, block: &ArgumentBlock) -> Result<[u64; 6], Unread> {
    let snapshot = snapshot(hit, Features::default()).map_err(Unread::Caller)?;
    let mut read = |at: Gva, buf: &mut [u8]| hit.read(at, buf).is_ok();
    block.arguments(&snapshot, &mut read).map_err(Unread::Block)
}

/// The registers at a hit, for the interpreter of code with the `features` of the processor.
pub(crate) fn snapshot(
    hit: &mut HitContext<'_>,
    features: Features,
) -> Result<Snapshot, AccessError> {
    let registers = &hit.state()?.registers;
    let gs = registers.system.segments.gs.base;
    let has_57_bits = registers.paging.five_levels();
    Ok(Snapshot {
        gprs: Gpr::ALL.map(|register| general_register(&hit.regs, register)),
        rflags: hit.regs.rflags,
        gs,
        has_57_bits,
        features,
    })
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
