//! The caller of a function without unwind rules, by the frame pointer.
//!
//! ```text
//!  rbp ──▶ the caller's rbp ──▶ …      push rbp
//!          the return address          mov rbp, rsp
//!          …
//! ```
//!
//! Code without rules need not have a frame pointer: rbp may be any value. So a caller is believed only if its address lies behind a call, and
//! remains a guess: the word may be left over from a finished call, or be a pointer to a function. A function that has called the kernel or was
//! interrupted before it has a frame of its own, and that does not begin with `push rbp`, loses its caller.

use introspect::insn::{MAX_CALL_BYTES, ends_with_call};

use super::elf::Bytes;
use super::registers::{BP, IP, ProgramRegisters, SP};

const WORD_BYTES: u64 = 8;
/// `endbr64; push rbp`, and without `endbr64`.
const ENTRY: [u8; 5] = [0xf3, 0x0f, 0x1e, 0xfa, 0x55];
const PUSH_RBP: [u8; 1] = [0x55];
const RET: [u8; 1] = [0xc3];
/// `mov rbp, rsp`, in both encodings.
const SET_RBP: [[u8; 3]; 2] = [[0x48, 0x89, 0xe5], [0x48, 0x8b, 0xec]];

/// The place of an instruction in its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within {
    /// Before `push rbp`, at the return, or at an address without code: the return address is on top of the stack.
    NoFrame,
    /// Between `push rbp` and `mov rbp, rsp`: the caller's rbp is on top of the stack.
    Pushed,
    /// Between `mov rbp, rsp` and the end.
    Framed,
}

/// Whether `at` is the address behind a call.
pub(super) fn is_behind_call(code: &dyn Bytes, at: u64) -> bool {
    // A mapping may begin with the call.
    let before = (2..=MAX_CALL_BYTES).rev().find_map(|len| {
        let start = at.checked_sub(len as u64)?;
        code.bytes(start, len)
    });
    before.is_some_and(|bytes| ends_with_call(&bytes))
}

/// A program without unwind rules.
pub(super) struct FramePointers<'p> {
    /// The program's memory; for code, also the file's page cache.
    pub(super) code: &'p dyn Bytes,
    /// The program's memory by its page tables.
    pub(super) stack: &'p dyn Bytes,
}

impl FramePointers<'_> {
    /// The registers in the caller of the function in a frame with `registers`; `None` if there is no such caller.
    pub(super) fn caller(
        &self,
        registers: &ProgramRegisters,
        within: Within,
    ) -> Option<ProgramRegisters> {
        let [sp, bp] = [SP, BP].map(|register| registers.values[register]);
        let (sp, bp) = (sp?, bp?);
        let (saved, returns_at) = match within {
            Within::NoFrame => (None, sp),
            Within::Pushed => (Some(sp), sp.checked_add(WORD_BYTES)?),
            Within::Framed if bp >= sp => (Some(bp), bp.checked_add(WORD_BYTES)?),
            Within::Framed => return None,
        };
        if !returns_at.is_multiple_of(WORD_BYTES) {
            return None;
        }
        let returns_to = self.word(returns_at)?;
        if !is_behind_call(self.code, returns_to) {
            return None;
        }
        // The function may have changed each other register.
        let mut values = [None; 17];
        values[IP] = Some(returns_to);
        values[SP] = Some(returns_at.checked_add(WORD_BYTES)?);
        values[BP] = match saved {
            Some(at) => Some(self.word(at)?),
            None => Some(bp),
        };
        Some(ProgramRegisters {
            values,
            ..*registers
        })
    }

    /// Where the interrupted instruction at `ip` is in its function.
    pub(super) fn within(&self, ip: u64) -> Within {
        // The end of the code may be near.
        let has = |at, code: &[u8]| self.code.bytes(at, code.len()).is_some_and(|it| it == code);
        if has(ip, &ENTRY) || has(ip, &PUSH_RBP) || has(ip, &RET) {
            return Within::NoFrame;
        }
        let follows_push = ip
            .checked_sub(1)
            .is_some_and(|before| has(before, &PUSH_RBP));
        match follows_push && SET_RBP.iter().any(|set| has(ip, set)) {
            true => Within::Pushed,
            false => Within::Framed,
        }
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.stack.read(at, &mut word)?;
        Some(u64::from_le_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x40_0000;
    const STACK: u64 = 0x7fff_0000;
    /// Behind the call in [`code`].
    const RETURN: u64 = CODE + 5;

    /// Bytes from an address on.
    struct At(u64, Vec<u8>);

    impl Bytes for At {
        fn read(&self, at: u64, buf: &mut [u8]) -> Option<()> {
            let start = usize::try_from(at.checked_sub(self.0)?).ok()?;
            buf.copy_from_slice(self.1.get(start..start.checked_add(buf.len())?)?);
            Some(())
        }
    }

    /// A call, and a function with a frame: endbr64; push rbp; mov rbp, rsp; nop; pop rbp; ret.
    fn code() -> At {
        let mut bytes = vec![0xe8, 3, 0, 0, 0, 0x90, 0x90, 0x90];
        bytes.extend(ENTRY);
        bytes.extend(SET_RBP[0]);
        bytes.extend([0x90, 0x5d, 0xc3]);
        At(CODE, bytes)
    }

    /// The callers rip, rsp and rbp of the instruction at `offset` in the function of [`code`], with `words` on the stack and rbp at `bp`.
    fn caller(offset: u64, words: &[u64], bp: u64) -> Option<[Option<u64>; 3]> {
        let mut values = [7; 17];
        (values[IP], values[SP], values[BP]) = (CODE + 8 + offset, STACK, bp);
        let registers = ProgramRegisters::of_vcpu(values, true);
        let words = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let pointers = FramePointers {
            code: &code(),
            stack: &At(STACK, words),
        };
        let found = pointers.caller(&registers, pointers.within(CODE + 8 + offset))?;
        assert_eq!(found.values[3], None, "rbx is not known");
        Some([IP, SP, BP].map(|register| found.values[register]))
    }

    #[test]
    fn caller_is_found_at_each_instruction_of_a_function_with_a_frame() {
        let (callers, word) = (STACK + 0x100, 8);
        let on_top = Some([Some(RETURN), Some(STACK + word), Some(callers)]);
        let pushed = Some([Some(RETURN), Some(STACK + 2 * word), Some(callers)]);
        for at_entry in [0, 4] {
            assert_eq!(caller(at_entry, &[RETURN], callers), on_top, "{at_entry}");
        }
        assert_eq!(caller(5, &[callers, RETURN], callers), pushed);
        for framed in [8, 9] {
            assert_eq!(
                caller(framed, &[callers, RETURN], STACK),
                pushed,
                "{framed}"
            );
        }
        assert_eq!(caller(10, &[RETURN], callers), on_top);
    }

    #[test]
    fn address_at_the_start_of_the_code_is_behind_a_call_of_five_bytes() {
        assert!(is_behind_call(&code(), RETURN));
        assert!(!is_behind_call(&code(), RETURN + 1));
        assert!(!is_behind_call(&code(), CODE));
    }

    #[test]
    fn register_that_is_no_frame_pointer_leads_nowhere() {
        let framed = 8;
        // Behind no call, outside the stack, below the stack pointer, not aligned.
        assert_eq!(caller(framed, &[0, RETURN + 1], STACK), None);
        assert_eq!(caller(framed, &[0, 3], STACK), None);
        for bp in [0, 7, STACK - 16, STACK + 4, STACK + 0x1000, u64::MAX] {
            assert_eq!(caller(framed, &[0, RETURN, RETURN], bp), None, "{bp:#x}");
        }
    }
}
