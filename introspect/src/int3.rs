//! Linux's handler of its own `int3`s: code that only an `int3` reaches.
//!
//! ```text
//!  asm_exc_int3:  endbr64; clac; cld       (nops, where the processor lacks it)
//!                 push -1                  there is no error code
//!                 test byte [rsp + 16], 3  which ring?
//!                 jne  program
//!                 push qword [rsp + 40]    six times: room for a call that the handler may have to emulate
//!  program:       …
//! ```
//!
//! Behind the `jne`, interrupts are off, the page tables are the kernel's, and the stack is that of the interrupted code. (`int3`
//! has no stack of its own since Linux 5.2, which also introduced the pushes.)
//!
//! Source: `arch/x86/entry/entry_64.S`, `idtentry` for `X86_TRAP_BP`.

use address::Gva;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::insn::{Decoded, decode};

/// The kernel's handler of `int3`.
pub const HANDLER: &str = "asm_exc_int3";
/// The number of checked bytes of the handler.
pub const HANDLER_BYTES: usize = 96;

/// The number of words pushed for an `int3` of ring 0.
const PUSHES: usize = 6;
/// The maximum number of instructions before `push -1`; alternatives leave some nops.
const MAX_BEFORE: usize = 12;
/// The offset of the pushed word from the stack pointer.
const PUSHED_FROM: u64 = 40;
/// The offset of the code segment from the stack pointer, behind `push -1`.
const CS_AT: u64 = 16;

/// The part of the handler executed for an `int3` of ring 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInt3 {
    /// The handler's first instruction. From here to the first push, every `int3` executes the same instructions.
    pub entry: Gva,
    /// The first push: a vCPU here has executed an `int3` in ring 0. The frame is 8 bytes above the stack pointer.
    pub pushes: Gva,
    /// The first two pushes, as in memory: no call returns to the second, and only a vCPU in the
    /// middle of the pushes can be at the second.
    pub first: [Decoded; 2],
}

impl KernelInt3 {
    /// Finds the pushes in `code`, which begins at the handler's address; `None` if the handler has other code.
    #[must_use]
    pub fn find(code: &[u8], handler: Gva) -> Option<Self> {
        let mut here = Reader { code, at: handler };
        let mut decoded = here.next()?;
        let mut before = 0;
        while !is_push_of_minus_one(decoded.instruction()) {
            before += 1;
            if !changes_nothing(decoded.instruction()) || before > MAX_BEFORE {
                return None;
            }
            decoded = here.next()?;
        }
        here.next().filter(|it| asks_for_ring(it.instruction()))?;
        let branch = here.next()?;
        let pushes = here.at;
        let first = [here.push()?, here.push()?];
        for _ in first.len()..PUSHES {
            here.push()?;
        }
        let is_branch = branch.instruction().mnemonic() == Mnemonic::Jne;
        (is_branch && branch.branch_target() == Some(here.at)).then_some(Self {
            entry: handler,
            pushes,
            first,
        })
    }
}

struct Reader<'c> {
    code: &'c [u8],
    at: Gva,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<Decoded> {
        let decoded = decode(self.code, self.at).ok()?;
        self.code = self.code.get(decoded.len()..)?;
        self.at = decoded.next();
        Some(decoded)
    }

    fn push(&mut self) -> Option<Decoded> {
        self.next().filter(|decoded| {
            let push = decoded.instruction();
            push.mnemonic() == Mnemonic::Push && is_on_stack(push, PUSHED_FROM)
        })
    }
}

/// Whether the instruction is of a kind that the kernel puts before `push -1`. Some kinds are nops
/// on some processors only.
fn changes_nothing(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Clac | Mnemonic::Cld
    )
}

fn is_push_of_minus_one(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Push
        && matches!(
            instruction.op0_kind(),
            OpKind::Immediate8to64 | OpKind::Immediate32to64
        )
        && instruction.immediate(0) == u64::MAX
}

fn asks_for_ring(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Test
        && is_on_stack(instruction, CS_AT)
        && instruction.op1_kind() == OpKind::Immediate8
        && instruction.immediate8() == 3
}

fn is_on_stack(instruction: &Instruction, distance: u64) -> bool {
    instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None
        && instruction.memory_displacement64() == distance
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Gva = Gva(0xffff_ffff_81c0_0ba0);
    /// `push qword [rsp + 40]`
    const PUSH: [u8; 4] = [0xff, 0x74, 0x24, 0x28];

    /// The handler in Debian's 6.1 and 6.12.
    fn handler(front: &[u8]) -> Vec<u8> {
        let asked = [0x6a, 0xff, 0xf6, 0x44, 0x24, 0x10, 3, 0x75, 24];
        let behind = [0xe8, 0, 0, 0, 0];
        [front, &asked, &PUSH.repeat(PUSHES), &behind].concat()
    }

    #[test]
    fn stock_handlers_are_known() {
        let clac = [0x0f, 0x01, 0xca];
        let endbr = [0xf3, 0x0f, 0x1e, 0xfa];
        for front in [
            &[0x90, 0x90, 0x90][..],
            &[&clac[..], &[0xfc]].concat(),
            &[&endbr[..], &[0x0f, 0x1f, 0x00], &[0xfc]].concat(),
            &[],
        ] {
            let found = KernelInt3::find(&handler(front), AT).expect("it is known");
            assert_eq!(found.entry, AT);
            assert_eq!(found.pushes, AT.wrapping_add(front.len() as u64 + 9));
            let [first, second] = found.first.each_ref().map(Decoded::at);
            assert_eq!((first, second.0 - first.0), (found.pushes, 4));
        }
    }

    #[test]
    fn others_are_not() {
        let known = handler(&[0xfc]);
        assert!(KernelInt3::find(&known, AT).is_some());
        // Each byte matters, except the bytes of the call behind.
        for index in 0..known.len() - 5 {
            let mut other = known.clone();
            other[index] ^= 0x20;
            assert_eq!(KernelInt3::find(&other, AT), None, "byte {index}");
        }
        for len in 0..known.len() - 5 {
            assert_eq!(KernelInt3::find(&known[..len], AT), None, "{len} bytes");
        }
        let before = [0x90; MAX_BEFORE + 1];
        assert_eq!(KernelInt3::find(&handler(&before), AT), None);
    }
}
