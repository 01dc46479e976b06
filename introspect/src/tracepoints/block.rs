//! Interprets the block of code that computes a tracepoint's arguments.
//!
//! The block is the target of the tracepoint's jump label. The block reads the pointer to the tracepoint's functions, and if the pointer is not null,
//! calls the functions with their data and the arguments in the registers of a call. The interpreter recognises the call by the data:
//!
//! ```text
//!  block:  mov  rax, [funcs]            ◀── reads as a pointer that is not null
//!          test rax, rax
//!          je   back
//!          mov  rdi, [rax + 8]          ◀── the functions' data, which reads as a value of the interpreter
//!          mov  rsi, rbx                argument 0
//!          call __SCT__tp_func_NAME     ◀── the interpreter stops: rsi, rdx, rcx, r8, r9, and the stack
//! ```
//!
//! Nothing of this happens in the guest. The registers are a copy, and writes of the block go to a small memory of the interpreter, which later
//! reads see. A block with an instruction that the emulator does not know, with too many steps, or with too many written bytes has no arguments.

use address::Gva;
use iced_x86::Mnemonic;
use thiserror::Error;

use super::calls::ReadCode;
use super::interpreter::{Interpreter, Pretended, Snapshot, Uninterpreted};
use super::scratch::{PRIVATE, Scratch};
use crate::insn::{Cpu, Gpr};

/// A block takes some ten instructions; a block with a condition calls a function.
const MAX_STEPS: usize = 256;
const MAX_WRITTEN_BYTES: usize = 512;
/// The offset of the data in an entry of the list of functions.
const DATA_OFFSET: u64 = 8;
/// The data of the first function. A call without the data is a call of the compiler's, for instance of a sanitizer.
pub(super) const DATA: Gva = PRIVATE;

/// The block of a tracepoint's site, at run-time addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentBlock {
    /// The first instruction.
    pub at: Gva,
    /// The address of the pointer to the tracepoint's functions.
    pub funcs: Gva,
}

/// Why the arguments of a tracepoint are not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoArguments {
    /// An instruction of the block cannot be interpreted.
    #[error(transparent)]
    Uninterpreted(#[from] Uninterpreted),
    /// The block does not call the tracepoint's functions.
    #[error(
        "the code at {at} does not call the tracepoint's functions within {MAX_STEPS} instructions"
    )]
    NoCall {
        /// The first instruction.
        at: Gva,
    },
}

impl ArgumentBlock {
    /// The arguments that the block would pass at `snapshot`, behind the first, which is the data of a function. `read` reads guest memory, with
    /// the original bytes under plants.
    ///
    /// # Errors
    ///
    /// If the block cannot be interpreted up to the call.
    pub fn arguments(
        &self,
        snapshot: &Snapshot,
        read: ReadCode<'_>,
    ) -> Result<[u64; 6], NoArguments> {
        let memory = Scratch::new(read, MAX_WRITTEN_BYTES);
        let mut cpu = self.at_call(snapshot, memory)?;
        let pushed = cpu.top_of_stack().unwrap_or(0);
        Ok([
            cpu.gpr(Gpr::Rsi),
            cpu.gpr(Gpr::Rdx),
            cpu.gpr(Gpr::Rcx),
            cpu.gpr(Gpr::R8),
            cpu.gpr(Gpr::R9),
            pushed,
        ])
    }

    /// The processor at the call of the tracepoint's functions, whose data is [`DATA`].
    ///
    /// # Errors
    ///
    /// If the block cannot be interpreted up to the call.
    pub(super) fn at_call<'r>(
        &self,
        snapshot: &Snapshot,
        memory: Scratch<'r>,
    ) -> Result<Interpreter<'r>, NoArguments> {
        let pretended = [
            // Any readable memory serves as the list of functions.
            Pretended {
                at: self.funcs,
                value: self.funcs.0,
            },
            Pretended {
                at: self.funcs.wrapping_add(DATA_OFFSET),
                value: DATA.0,
            },
        ];
        let mut cpu = Interpreter::new(*snapshot, self.at, pretended, memory);
        for _ in 0..MAX_STEPS {
            let decoded = cpu.decode()?;
            let instruction = decoded.instruction();
            let is_call = instruction.is_call_near() || instruction.is_call_near_indirect();
            let is_patched = instruction.mnemonic() == Mnemonic::Int3;
            if cpu.gpr(Gpr::Rdi) == DATA.0 && (is_call || is_patched && cpu.is_patched_call()) {
                return Ok(cpu);
            }
            cpu.execute(&decoded)?;
        }
        Err(NoArguments::NoCall { at: self.at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::Features;
    use crate::tracepoints::synthetic::Image;

    const CODE: u64 = 0xffff_ffff_8100_0000;
    const FUNCS: u64 = CODE + 0x800;
    const STACK: u64 = CODE + 0xf00;

    fn run(code: &[u8], gprs: [u64; 16]) -> Result<[u64; 6], NoArguments> {
        let mut memory = Image::zeroed(Gva(CODE), 0x1000);
        memory.put(0, code);
        let mut read = memory.reader();
        let block = ArgumentBlock {
            at: Gva(CODE),
            funcs: Gva(FUNCS),
        };
        let snapshot = Snapshot {
            gprs,
            rflags: 2,
            gs: FUNCS + 0x100,
            has_57_bits: false,
            features: Features::default(),
        };
        block.arguments(&snapshot, &mut read)
    }

    fn gprs() -> [u64; 16] {
        let mut gprs = [0; 16];
        gprs[Gpr::Rbx.number()] = 0xb0;
        gprs[Gpr::R8.number()] = 0x80;
        gprs[Gpr::R12.number()] = 0xc0;
        gprs[Gpr::Rsp.number()] = STACK;
        gprs
    }

    /// `mov rax, [rip + distance to the functions]`, at `at`.
    fn load_funcs(at: u8) -> Vec<u8> {
        let distance = u32::try_from(FUNCS - CODE).expect("small") - u32::from(at) - 7;
        [&[0x48, 0x8b, 0x05], &distance.to_le_bytes()[..]].concat()
    }

    #[test]
    fn the_arguments_are_those_of_the_call_behind_the_test_for_null() {
        let code = [
            // inc dword gs:[0]; call +0 is not the tracepoint's; add rsp, 8
            &[0x65, 0xff, 0x04, 0x25, 0, 0, 0, 0][..],
            &[0xe8, 0, 0, 0, 0],
            &[0x48, 0x83, 0xc4, 8],
            &load_funcs(17),
            // test rax, rax; je over the rest
            &[0x48, 0x85, 0xc0, 0x74, 0x20],
            // mov rdi, [rax + 8]; mov rsi, rbx; mov edx, 7; push r12
            &[
                0x48, 0x8b, 0x78, 8, 0x48, 0x89, 0xde, 0xba, 7, 0, 0, 0, 0x41, 0x54,
            ],
            // mov rcx, [rsp]; call
            &[0x48, 0x8b, 0x0c, 0x24, 0xe8, 0, 0, 0, 0],
        ]
        .concat();
        let arguments = run(&code, gprs()).expect("known");
        assert_eq!(arguments, [0xb0, 7, 0xc0, 0x80, 0, 0xc0]);
    }

    #[test]
    fn a_call_without_the_data_of_the_function_is_not_the_call_of_the_tracepoint() {
        let code = [
            &load_funcs(0)[..],
            // lea rdi, [rax + 8]; call over the next instruction, as a sanitizer does; jmp over the function; ret
            &[0x48, 0x8d, 0x78, 8, 0xe8, 2, 0, 0, 0, 0xeb, 1, 0xc3],
            // mov rdi, [rax + 8]; mov rsi, rbx; call
            &[0x48, 0x8b, 0x78, 8, 0x48, 0x89, 0xde, 0xe8, 0, 0, 0, 0],
        ]
        .concat();
        let mut gprs = gprs();
        gprs[Gpr::Rsi.number()] = 0xbad;
        assert_eq!(run(&code, gprs).expect("known")[0], 0xb0);
    }

    #[test]
    fn the_call_that_the_guest_patches_is_the_call() {
        let mut code = load_funcs(0);
        // mov rdi, [rax + 8]; mov rsi, rbx; call, whose first byte is an int3
        code.extend([0x48, 0x8b, 0x78, 8, 0x48, 0x89, 0xde, 0xcc]);
        let int3 = code.len();
        code.extend([0, 0, 0, 0]);
        assert_eq!(run(&code, gprs()).expect("known")[0], 0xb0);
        // As a call, it would lead to no code: the guest's own probe is on another instruction.
        code[int3..].copy_from_slice(&[0, 0, 0x70, 0]);
        run(&code, gprs()).expect_err("another int3");
        // mov rsi, rbx; int3
        let error = run(&[0x48, 0x89, 0xde, 0xcc], gprs()).expect_err("unknown");
        let text = error.to_string();
        assert!(text.contains("cannot emulate `int3`"), "{text}");
    }

    #[test]
    fn a_block_that_cannot_be_interpreted_has_no_arguments() {
        let no = |code: &[u8]| run(code, gprs()).expect_err("unknown").to_string();
        // jmp to itself
        assert!(no(&[0xeb, 0xfe]).contains("does not call"));
        // hlt
        assert!(no(&[0xf4]).contains("`hlt` at"));
        // push rax; jmp back
        assert!(no(&[0x50, 0xeb, 0xfd]).contains("`push rax` at"));
        // jmp out of the readable memory
        assert!(no(&[0xe9, 0, 0x10, 0, 0]).contains("no instruction can be read"));
    }
}
