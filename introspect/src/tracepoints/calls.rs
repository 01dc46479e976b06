//! Whether the block of a jump label calls the functions of a tracepoint.
//!
//! A jump label with the key of a tracepoint is a passage of the tracepoint (`trace_NAME()`), or only asks whether the tracepoint is on
//! (`trace_NAME_enabled()`). The block of a passage calls the functions, by the static call of the tracepoint:
//!
//! ```text
//!  trace_NAME():            block: … call __SCT__tp_func_NAME     in the kernel's file
//!                           block: … call __traceiter_NAME        at run time, while the tracepoint has no function or several
//!                           block: … call FUNCTION                at run time, while it has one: a site of the table of static calls
//!  trace_NAME_enabled():    block: …                              perhaps with a passage, behind a jump label of its own
//! ```
//!
//! Jump labels in the block count as the nops or jumps that they are: a passage behind a question is a site of its own.

use std::collections::{BTreeSet, VecDeque};

use address::Gva;
use iced_x86::FlowControl;

use super::TracepointSite;
use crate::insn::{Decoded, decode};

/// A block has some ten instructions before its call. A block without a call leads to the rest of its function.
const MAX_INSTRUCTIONS: usize = 512;
const MAX_INSTRUCTION_BYTES: usize = 15;

/// Fills the bytes from the address on; `false` if they cannot be read.
pub type ReadCode<'r> = &'r mut dyn FnMut(Gva, &mut [u8]) -> bool;

/// The static call of a tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointCall {
    /// The `struct static_call_key`.
    pub key: Gva,
    /// The trampoline `__SCT__tp_func_NAME`.
    pub trampoline: Gva,
    /// The function `__traceiter_NAME`, which calls the functions of the tracepoint.
    pub iterator: Gva,
}

impl TracepointCall {
    /// Whether the block of `site` makes the call. `key_of` has the keys of the static calls at the addresses of instructions. `left` is the
    /// number of instructions that may still be decoded: at 0, no block makes the call.
    #[must_use]
    pub fn is_made_by(
        &self,
        site: &TracepointSite,
        read: ReadCode<'_>,
        key_of: &dyn Fn(Gva) -> Option<Gva>,
        left: &mut usize,
    ) -> bool {
        let behind = instruction(site.at, read).map(|label| label.next());
        let mut seen = BTreeSet::new();
        let mut next = VecDeque::from([site.block]);
        while let Some(at) = next.pop_front() {
            // Behind the label, the kernel goes on as without the block.
            if Some(at) == behind || seen.len() == MAX_INSTRUCTIONS || !seen.insert(at) {
                continue;
            }
            let Some(fewer) = left.checked_sub(1) else {
                return false;
            };
            *left = fewer;
            let Some(decoded) = instruction(at, read) else {
                continue;
            };
            let target = decoded.branch_target();
            let flow = decoded.instruction().flow_control();
            let is_transfer = matches!(flow, FlowControl::Call | FlowControl::UnconditionalBranch);
            let is_function = target == Some(self.trampoline) || target == Some(self.iterator);
            if is_transfer && (is_function || key_of(at) == Some(self.key)) {
                return true;
            }
            match flow {
                FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {
                    next.push_back(decoded.next());
                }
                FlowControl::UnconditionalBranch => next.extend(target),
                FlowControl::ConditionalBranch => {
                    next.extend(target);
                    next.push_back(decoded.next());
                }
                // A return, a trap, or a jump to an address that the code does not say.
                _ => (),
            }
        }
        false
    }
}

/// The instruction at `at`; `None` if the code cannot be read, or holds no instruction.
pub(super) fn instruction(at: Gva, read: ReadCode<'_>) -> Option<Decoded> {
    let mut bytes = [0; MAX_INSTRUCTION_BYTES];
    // The next page may not be mapped.
    let readable = (1..=MAX_INSTRUCTION_BYTES)
        .rev()
        .find(|len| read(at, &mut bytes[..*len]))?;
    decode(&bytes[..readable], at).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0xffff_ffff_8100_0000;
    /// Behind the code.
    const CALL: TracepointCall = TracepointCall {
        key: Gva(CODE + 0x9000),
        trampoline: Gva(CODE + 0x1000),
        iterator: Gva(CODE + 0x2000),
    };
    /// The label at the beginning, and the block behind it.
    const SITE: TracepointSite = TracepointSite {
        at: Gva(CODE),
        block: Gva(CODE + 0x10),
    };
    const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

    /// A near call or jump at `at`.
    fn branch(opcode: u8, at: u64, target: Gva) -> Vec<u8> {
        let distance = target.0.wrapping_sub(CODE + at + 5);
        [&[opcode], &distance.to_le_bytes()[..4]].concat()
    }

    /// Whether a block of these parts, each at its offset, makes the call. `static_call` is the offset of a call with the key.
    fn is_made(parts: &[(u64, &[u8])], static_call: Option<u64>) -> bool {
        let mut memory = vec![0xcc; 0x800];
        memory[..5].copy_from_slice(&NOP5);
        for (at, bytes) in parts {
            let at = usize::try_from(*at).expect("small");
            memory[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let mut read = |at: Gva, buf: &mut [u8]| {
            let found = at.offset_from(Gva(CODE)).and_then(|at| {
                let at = usize::try_from(at).ok()?;
                memory.get(at..at.checked_add(buf.len())?)
            });
            found.is_some_and(|found| {
                buf.copy_from_slice(found);
                true
            })
        };
        let key_of = |at: Gva| (Some(at.0) == static_call.map(|at| CODE + at)).then_some(CALL.key);
        let mut left = MAX_INSTRUCTIONS;
        let is_made = CALL.is_made_by(&SITE, &mut read, &key_of, &mut left);
        assert!(!CALL.is_made_by(&SITE, &mut read, &key_of, &mut 0));
        is_made
    }

    #[test]
    fn passage_calls_the_trampoline_or_the_iterator() {
        for target in [CALL.trampoline, CALL.iterator] {
            let call = branch(0xe8, 0x15, target);
            // test rax, rax; je over the call
            assert!(is_made(
                &[(0x10, &[0x48, 0x85, 0xc0, 0x74, 5]), (0x15, &call)],
                None
            ));
            let tail = branch(0xe9, 0x10, target);
            assert!(is_made(&[(0x10, &tail)], None), "a tail call");
        }
    }

    #[test]
    fn passage_calls_the_only_function_by_a_static_call() {
        let call = branch(0xe8, 0x10, Gva(CODE + 0x5000));
        assert!(is_made(&[(0x10, &call)], Some(0x10)));
        assert!(!is_made(&[(0x10, &call)], Some(0x15)));
        assert!(!is_made(&[(0x10, &call)], None), "another function");
    }

    #[test]
    fn call_behind_a_branch_is_found() {
        // je +0x20; ret; at the target: the call.
        let call = branch(0xe8, 0x32, CALL.trampoline);
        assert!(is_made(&[(0x10, &[0x74, 0x20, 0xc3]), (0x32, &call)], None));
    }

    #[test]
    fn question_whether_the_tracepoint_is_on_is_no_passage() {
        // A passage behind the question: its label, off; its block, at 0x40, which only the label leads to. Then back.
        let back = branch(0xe9, 0x15, Gva(CODE + 5));
        let call = branch(0xe8, 0x40, CALL.trampoline);
        assert!(!is_made(
            &[(0x10, &NOP5), (0x15, &back), (0x40, &call)],
            None
        ));
        let again = branch(0xe9, 0x10, SITE.block);
        assert!(!is_made(&[(0x10, &again)], None), "an endless loop");
        assert!(!is_made(&[(0x10, &[0xff, 0xe0])], None), "jmp rax");
    }

    #[test]
    fn search_ends_behind_the_label() {
        // The block goes back behind the label, where a call follows that the kernel makes in any case.
        let call = branch(0xe8, 5, CALL.trampoline);
        let back = branch(0xe9, 0x10, Gva(CODE + 5));
        assert!(!is_made(&[(5, &call), (0x10, &back)], None));
    }

    #[test]
    fn long_code_is_searched_up_to_the_limit() {
        let nops = vec![0x90; MAX_INSTRUCTIONS];
        let at = 0x10 + nops.len() as u64;
        let call = branch(0xe8, at, CALL.trampoline);
        assert!(!is_made(&[(0x10, &nops), (at, &call)], None));
        let call = branch(0xe8, at - 1, CALL.trampoline);
        assert!(is_made(&[(0x10, &nops[1..]), (at - 1, &call)], None));
    }
}
