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

use std::collections::BTreeMap;

use address::Gva;
use thiserror::Error;

use super::calls::{ReadCode, instruction};
use crate::insn::{Access, Cpu, Decoded, Fault, Gpr, Outcome, Reason, Segment, emulate_decoded};

/// A block takes some ten instructions; a block with a condition calls a function.
const MAX_STEPS: usize = 256;
const MAX_WRITTEN_BYTES: usize = 512;
const WORD_BYTES: u64 = 8;
/// The offset of the data in an entry of the list of functions.
const DATA_OFFSET: u64 = 8;
/// The data of the first function. A call without the data is a call of the compiler's, for instance of a sanitizer.
const DATA: u64 = 0x6d79_da7a_6d79_da7a;

/// The block of a tracepoint's site, at run-time addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentBlock {
    /// The first instruction.
    pub at: Gva,
    /// The address of the pointer to the tracepoint's functions.
    pub funcs: Gva,
}

/// The registers of a processor at the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The general registers, by [`Gpr::number`].
    pub gprs: [u64; 16],
    /// The flags.
    pub rflags: u64,
    /// The base of `gs`.
    pub gs: u64,
}

/// Why the arguments of a tracepoint are not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoArguments {
    /// The code cannot be read, or holds no instruction.
    #[error("no instruction can be read at {at}")]
    NoCode {
        /// The address.
        at: Gva,
    },
    /// The emulator does not know the instruction.
    #[error("cannot emulate `{text}` at {at}: {reason:?}")]
    Unsupported {
        /// The address.
        at: Gva,
        /// The instruction.
        text: String,
        /// The reason. Part of the message.
        reason: Reason,
    },
    /// A memory access of the instruction is not possible.
    #[error("cannot emulate `{text}` at {at}: {fault}")]
    Fault {
        /// The address.
        at: Gva,
        /// The instruction.
        text: String,
        /// The fault. Part of the message.
        fault: Fault,
    },
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
        let mut cpu = Interpreter {
            gprs: snapshot.gprs,
            rip: self.at,
            rflags: snapshot.rflags,
            gs: snapshot.gs,
            funcs: self.funcs,
            written: BTreeMap::new(),
            read,
        };
        for _ in 0..MAX_STEPS {
            let decoded = cpu.instruction()?;
            let instruction = decoded.instruction();
            let is_call = instruction.is_call_near() || instruction.is_call_near_indirect();
            if is_call && cpu.gpr(Gpr::Rdi) == DATA {
                return Ok(cpu.passed());
            }
            let (at, text) = (decoded.at(), || decoded.text());
            match emulate_decoded(&mut cpu, &decoded) {
                Outcome::Done => (),
                Outcome::Fault(fault) => {
                    let text = text();
                    return Err(NoArguments::Fault { at, text, fault });
                }
                Outcome::Unsupported(reason) => {
                    let text = text();
                    return Err(NoArguments::Unsupported { at, text, reason });
                }
            }
        }
        Err(NoArguments::NoCall { at: self.at })
    }
}

/// A copy of a processor.
struct Interpreter<'r> {
    gprs: [u64; 16],
    rip: Gva,
    rflags: u64,
    gs: u64,
    funcs: Gva,
    /// The bytes that the block has written.
    written: BTreeMap<Gva, u8>,
    read: ReadCode<'r>,
}

impl Interpreter<'_> {
    fn instruction(&mut self) -> Result<Decoded, NoArguments> {
        let at = self.rip;
        instruction(at, self.read).ok_or(NoArguments::NoCode { at })
    }

    /// The arguments behind the first, at a call.
    fn passed(&mut self) -> [u64; 6] {
        let mut word = [0; 8];
        let rsp = Gva(self.gpr(Gpr::Rsp));
        let pushed = self.load(rsp, &mut word);
        [
            self.gpr(Gpr::Rsi),
            self.gpr(Gpr::Rdx),
            self.gpr(Gpr::Rcx),
            self.gpr(Gpr::R8),
            self.gpr(Gpr::R9),
            if pushed { u64::from_le_bytes(word) } else { 0 },
        ]
    }

    /// Reads memory as the block has left it.
    fn load(&mut self, at: Gva, buf: &mut [u8]) -> bool {
        let len = buf.len() as u64;
        if at == self.funcs && len == WORD_BYTES {
            // Any readable memory serves as the list of functions.
            buf.copy_from_slice(&self.funcs.0.to_le_bytes());
            return true;
        }
        if at == self.funcs.wrapping_add(DATA_OFFSET) && len == WORD_BYTES {
            buf.copy_from_slice(&DATA.to_le_bytes());
            return true;
        }
        if !(self.read)(at, buf) {
            return false;
        }
        for (number, byte) in (0..).zip(buf.iter_mut()) {
            if let Some(written) = self.written.get(&at.wrapping_add(number)) {
                *byte = *written;
            }
        }
        true
    }
}

impl Cpu for Interpreter<'_> {
    fn gpr(&self, register: Gpr) -> u64 {
        self.gprs[register.number()]
    }

    fn set_gpr(&mut self, register: Gpr, value: u64) {
        self.gprs[register.number()] = value;
    }

    fn rip(&self) -> u64 {
        self.rip.0
    }

    fn set_rip(&mut self, value: u64) {
        self.rip = Gva(value);
    }

    fn rflags(&self) -> u64 {
        self.rflags
    }

    fn set_rflags(&mut self, value: u64) {
        self.rflags = value;
    }

    fn segment_base(&mut self, segment: Segment) -> Result<u64, Fault> {
        match segment {
            Segment::Gs => Ok(self.gs),
            Segment::Fs => Err(Fault::Registers),
        }
    }

    fn privilege_level(&mut self) -> Result<u8, Fault> {
        Ok(0)
    }

    fn read(&mut self, at: Gva, buf: &mut [u8], access: Access) -> Result<(), Fault> {
        let fault = Fault::NotMapped { at, access };
        self.load(at, buf).then_some(()).ok_or(fault)
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), Fault> {
        if self.written.len() + bytes.len() > MAX_WRITTEN_BYTES {
            return Err(Fault::NotMemory {
                at,
                access: Access::Write,
            });
        }
        let bytes = (0..).zip(bytes);
        self.written
            .extend(bytes.map(|(number, byte)| (at.wrapping_add(number), *byte)));
        Ok(())
    }

    fn compare_exchange(&mut self, at: Gva, old: &[u8], new: &[u8]) -> Result<bool, Fault> {
        let mut present = vec![0; old.len()];
        self.read(at, &mut present, Access::Write)?;
        if present != old {
            return Ok(false);
        }
        self.write(at, new).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0xffff_ffff_8100_0000;
    const FUNCS: u64 = CODE + 0x800;
    const STACK: u64 = CODE + 0xf00;

    fn run(code: &[u8], gprs: [u64; 16]) -> Result<[u64; 6], NoArguments> {
        let mut memory = vec![0; 0x1000];
        memory[..code.len()].copy_from_slice(code);
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
        let block = ArgumentBlock {
            at: Gva(CODE),
            funcs: Gva(FUNCS),
        };
        let snapshot = Snapshot {
            gprs,
            rflags: 2,
            gs: FUNCS + 0x100,
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
    fn a_block_that_cannot_be_interpreted_has_no_arguments() {
        let no = |code: &[u8]| run(code, gprs()).expect_err("unknown").to_string();
        // jmp to itself
        assert!(no(&[0xeb, 0xfe]).contains("does not call"));
        // hlt
        assert!(no(&[0xf4]).contains("cannot emulate `hlt`"));
        // push rax; jmp back
        assert!(no(&[0x50, 0xeb, 0xfd]).contains("cannot emulate `push rax`"));
        // jmp out of the readable memory
        assert!(no(&[0xe9, 0, 0x10, 0, 0]).contains("no instruction can be read"));
    }
}
