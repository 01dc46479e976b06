//! Interprets the function of the kernel that writes the record of a tracepoint.
//!
//! If the guest has an event on, the tracepoint calls `trace_event_raw_event_NAME` with the arguments. The function reserves room in the buffer of
//! ftrace, writes the fields, and commits. The interpreter runs the function behind the block that computes the arguments:
//!
//! ```text
//!  block:     … mov rdi, DATA; call __SCT__tp_func_NAME
//!                                └▶ trace_event_raw_event_NAME(DATA, arguments)
//!                                     DATA reads as a file of ftrace whose flags are 0: no filter, no trigger
//!  reserve:                           trace_event_buffer_reserve(…, length)    returns a place in the interpreter's memory
//!                                     mov [rax + 8], …                         the fields
//!  commit:                            trace_event_buffer_commit(…)             the interpreter stops: the record is complete
//! ```
//!
//! Functions in between, for instance `strlen`, are interpreted too. The limits hold for any code: the guest may have changed it.

use address::Gva;
use thiserror::Error;

use super::block::{ArgumentBlock, DATA, NoArguments};
use super::calls::ReadCode;
use super::interpreter::{Interpreter, Snapshot, Uninterpreted};
use super::scratch::{PRIVATE, PRIVATE_BYTES, Scratch};
use crate::insn::{Cpu, Gpr};

/// The kernel's `strlen` takes some instructions for each character of a text. The bytes that the code reads and writes are limited, too.
const MAX_STEPS: usize = 1 << 16;
/// The kernel's own limit is a page of the buffer, too.
const MAX_RECORD_BYTES: u64 = 4096;
/// The record, and the stacks of the functions.
const MAX_WRITTEN_BYTES: usize = 16 << 10;
/// The place of the record, behind the file of ftrace.
const RECORD: Gva = Gva(PRIVATE.0 + 0x1000);
/// The return address of the function. No code is there.
const RETURN: Gva = Gva(PRIVATE.0 + PRIVATE_BYTES - 0x10);
/// The kernel may skip this instruction at the entry of a function.
const ENDBR_BYTES: u64 = 4;

/// The code that writes the record of a tracepoint, at run-time addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordWriter {
    /// The block that computes the arguments.
    pub block: ArgumentBlock,
    /// `trace_event_raw_event_NAME`.
    pub function: Gva,
    /// `trace_event_buffer_reserve`.
    pub reserve: Gva,
    /// `trace_event_buffer_commit`.
    pub commit: Gva,
}

/// Why the record of a tracepoint is not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoRecord {
    /// The arguments are not known.
    #[error(transparent)]
    Arguments(#[from] NoArguments),
    /// An instruction of the function cannot be interpreted.
    #[error(transparent)]
    Uninterpreted(#[from] Uninterpreted),
    /// The stack cannot be written or read.
    #[error("the stack of the function at {function} cannot be accessed")]
    Stack {
        /// The function.
        function: Gva,
    },
    /// The function wants too large a record.
    #[error(
        "the function at {function} reserves {bytes} bytes, more than {MAX_RECORD_BYTES} for a record"
    )]
    TooLong {
        /// The function.
        function: Gva,
        /// The length.
        bytes: u64,
    },
    /// The function returns, or commits a record without room for it.
    #[error("the function at {function} writes no record")]
    NotWritten {
        /// The function.
        function: Gva,
    },
    /// The function takes too many instructions.
    #[error("the function at {function} commits no record within {MAX_STEPS} instructions")]
    TooManySteps {
        /// The function.
        function: Gva,
    },
}

impl RecordWriter {
    /// The code of a kernel that has moved by `slide` bytes.
    #[must_use]
    pub fn rebased(self, slide: i64) -> Self {
        let moved = |at: Gva| Gva(at.0.wrapping_add_signed(slide));
        Self {
            block: ArgumentBlock {
                at: moved(self.block.at),
                funcs: moved(self.block.funcs),
            },
            function: moved(self.function),
            reserve: moved(self.reserve),
            commit: moved(self.commit),
        }
    }

    /// The record that the kernel would write at `snapshot`, from its first byte, with zeros in place of the common fields. `read` reads guest
    /// memory, with the original bytes under plants.
    ///
    /// # Errors
    ///
    /// If the block or the function cannot be interpreted up to the end of the record.
    pub fn record(&self, snapshot: &Snapshot, read: ReadCode<'_>) -> Result<Vec<u8>, NoRecord> {
        let function = self.function;
        let memory = Scratch::new(read, MAX_WRITTEN_BYTES);
        let mut cpu = self.block.at_call(snapshot, memory)?;
        let mut reserved = None;
        let is_done = cpu.call(function, RETURN);
        let accessed = |is_done: bool| is_done.then_some(()).ok_or(NoRecord::Stack { function });
        accessed(is_done)?;
        for _ in 0..MAX_STEPS {
            let at = cpu.at();
            if is_entry(at, self.reserve) && cpu.gpr(Gpr::Rsi) != DATA.0 {
                // A function in between passes another tracepoint, whose event the guest has on: no room, no record.
                accessed(cpu.return_now(0))?;
                continue;
            }
            if is_entry(at, self.commit) && reserved.is_some_and(|(to, _)| cpu.gpr(Gpr::Rdi) != to)
            {
                accessed(cpu.return_now(0))?;
                continue;
            }
            if is_entry(at, self.reserve) {
                let (to, bytes) = (cpu.gpr(Gpr::Rdi), cpu.gpr(Gpr::Rdx));
                if bytes > MAX_RECORD_BYTES {
                    return Err(NoRecord::TooLong { function, bytes });
                }
                reserved = Some((to, bytes));
                accessed(cpu.return_now(RECORD.0))?;
                continue;
            }
            if is_entry(at, self.commit) || at == RETURN {
                let is_committed = at != RETURN;
                return reserved
                    .filter(|_| is_committed)
                    .and_then(|(_, bytes)| written(&mut cpu, bytes))
                    .ok_or(NoRecord::NotWritten { function });
            }
            let decoded = cpu.decode()?;
            cpu.execute(&decoded)?;
        }
        Err(NoRecord::TooManySteps { function })
    }
}

fn is_entry(at: Gva, function: Gva) -> bool {
    at == function || at == function.wrapping_add(ENDBR_BYTES)
}

fn written(cpu: &mut Interpreter<'_>, bytes: u64) -> Option<Vec<u8>> {
    let mut record = vec![0; usize::try_from(bytes).ok()?];
    cpu.look(RECORD, &mut record).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::Features;
    use crate::tracepoints::synthetic::Image;

    const CODE: u64 = 0xffff_ffff_8100_0000;
    const FUNCTION: u64 = CODE + 0x40;
    const STRLEN: u64 = CODE + 0x200;
    const RESERVE: u64 = CODE + 0x300;
    const COMMIT: u64 = CODE + 0x340;
    const FUNCS: u64 = CODE + 0x800;
    const TEXT: u64 = CODE + 0x900;
    const STACK: u64 = CODE + 0xf00;

    /// `mov rax, [rip + the functions]; mov rdi, [rax + 8]; mov esi, 0x11; lea rdx, [rip + the text]; call`.
    fn block() -> Vec<u8> {
        let distance =
            |at: u64, to: u64| u32::try_from(to - CODE - at).expect("small").to_le_bytes();
        [
            &[0x48, 0x8b, 0x05][..],
            &distance(7, FUNCS),
            &[0x48, 0x8b, 0x78, 8, 0xbe, 0x11, 0, 0, 0],
            &[0x48, 0x8d, 0x15],
            &distance(23, TEXT),
            &[0xe8, 0, 0, 0, 0],
        ]
        .concat()
    }

    /// A near call or jump at `at`.
    fn near(opcode: u8, at: u64, target: u64) -> Vec<u8> {
        let distance = u32::try_from(target.wrapping_sub(at + 5) & 0xffff_ffff).expect("masked");
        [&[opcode][..], &distance.to_le_bytes()].concat()
    }

    fn call(function: &mut Vec<u8>, target: u64) {
        let at = FUNCTION + function.len() as u64;
        function.extend(near(0xe8, at, target));
    }

    /// Runs `function` with the arguments 0x11 and `TEXT`.
    fn run(function: &[u8]) -> Result<Vec<u8>, NoRecord> {
        let mut memory = Image::zeroed(Gva(CODE), 0x1000);
        memory.put(0, &block());
        memory.put(FUNCTION - CODE, function);
        // strlen: xor eax, eax; cmp byte [rdi + rax], 0; je +5; inc rax; jmp back; ret
        let strlen = [
            0x31, 0xc0, 0x80, 0x3c, 0x07, 0, 0x74, 5, 0x48, 0xff, 0xc0, 0xeb, 0xf5, 0xc3,
        ];
        memory.put(STRLEN - CODE, &strlen);
        memory.put(TEXT - CODE, b"sh\0");
        let mut read = memory.reader();
        let writer = RecordWriter {
            block: ArgumentBlock {
                at: Gva(CODE),
                funcs: Gva(FUNCS),
            },
            function: Gva(FUNCTION),
            reserve: Gva(RESERVE),
            commit: Gva(COMMIT),
        };
        let mut gprs = [0; 16];
        gprs[Gpr::Rsp.number()] = STACK;
        let snapshot = Snapshot {
            gprs,
            rflags: 2,
            gs: 0,
            has_57_bits: false,
            features: Features::default(),
        };
        writer.record(&snapshot, &mut read)
    }

    /// `mov rsi, rdi; mov edx, bytes; call reserve`, in the function, whose `rdi` is the file.
    fn reserve(function: &mut Vec<u8>, bytes: u32) {
        function.extend([0x48, 0x89, 0xfe, 0xba]);
        function.extend(bytes.to_le_bytes());
        call(function, RESERVE);
    }

    #[test]
    fn record_of_another_event_in_between_is_not_the_record() {
        // push rdi
        let mut function = vec![0x57];
        reserve(&mut function, 12);
        // mov edi, 5; mov esi, 6; mov edx, 64: of another file, into another structure
        function.extend([0xbf, 5, 0, 0, 0, 0xbe, 6, 0, 0, 0, 0xba, 64, 0, 0, 0]);
        call(&mut function, RESERVE);
        // test rax, rax; jne -2, which is endless
        function.extend([0x48, 0x85, 0xc0, 0x75, 0xfe]);
        call(&mut function, COMMIT);
        // pop rdi
        function.push(0x5f);
        call(&mut function, COMMIT);
        assert_eq!(run(&function).expect("a record"), [0; 12]);
    }

    #[test]
    fn record_has_the_bytes_that_the_function_writes() {
        let mut function = vec![
            // cmp qword [rdi + 0x48], 0: the flags of the file; jne -2, which is endless
            0x48, 0x83, 0x7f, 0x48, 0, 0x75,
            0xfe, // push rsi; push rdx; push rdi; mov rdi, rdx
            0x56, 0x52, 0x57, 0x48, 0x89, 0xd7,
        ];
        call(&mut function, STRLEN);
        // pop rdi; mov rsi, rdi; push rax; lea edx, [rax + 13], for common fields, a number and the text
        function.extend([0x5f, 0x48, 0x89, 0xfe, 0x50, 0x8d, 0x50, 13]);
        call(&mut function, RESERVE);
        function.extend([
            // pop rcx; pop rsi; pop rdx; mov [rax + 8], edx
            0x59, 0x5e, 0x5a, 0x89, 0x50,
            8, // push rdi; lea rdi, [rax + 12]; inc ecx; rep movsb; pop rdi
            0x57, 0x48, 0x8d, 0x78, 12, 0xff, 0xc1, 0xf3, 0xa4, 0x5f,
        ]);
        let at = FUNCTION + function.len() as u64;
        function.extend(near(0xe9, at, COMMIT));
        let record = run(&function).expect("a record");
        assert_eq!(record, b"\0\0\0\0\0\0\0\0\x11\0\0\0sh\0");
    }

    #[test]
    fn entry_behind_the_first_instruction_is_the_function_too() {
        let mut function = vec![0x48, 0x89, 0xfe, 0xba, 12, 0, 0, 0];
        call(&mut function, RESERVE + ENDBR_BYTES);
        call(&mut function, COMMIT + ENDBR_BYTES);
        assert_eq!(run(&function).expect("a record"), [0; 12]);
    }

    #[test]
    fn endless_loop_has_no_record() {
        let error = run(&[0xeb, 0xfe]).expect_err("endless");
        assert!(matches!(error, NoRecord::TooManySteps { .. }), "{error}");
    }

    #[test]
    fn record_that_is_never_committed_is_none() {
        let mut function = Vec::new();
        reserve(&mut function, 12);
        let mut endless = function.clone();
        function.push(0xc3);
        let error = run(&function).expect_err("returns");
        assert!(matches!(error, NoRecord::NotWritten { .. }), "{error}");
        endless.extend([0xeb, 0xfe]);
        let error = run(&endless).expect_err("endless");
        assert!(matches!(error, NoRecord::TooManySteps { .. }), "{error}");
    }

    #[test]
    fn commit_without_room_has_no_record() {
        let mut function = Vec::new();
        call(&mut function, COMMIT);
        let error = run(&function).expect_err("no room");
        assert!(matches!(error, NoRecord::NotWritten { .. }), "{error}");
    }

    #[test]
    fn record_of_4_gib_is_refused() {
        for bytes in [u32::MAX, 4097] {
            let mut function = Vec::new();
            reserve(&mut function, bytes);
            call(&mut function, COMMIT);
            let error = run(&function).expect_err("too long");
            let bytes = u64::from(bytes);
            let expected = NoRecord::TooLong {
                function: Gva(FUNCTION),
                bytes,
            };
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn writes_without_end_are_refused() {
        // push rax; jmp back
        let error = run(&[0x50, 0xeb, 0xfd]).expect_err("too much");
        let (at, text) = (Gva(FUNCTION), "push rax".to_owned());
        assert_eq!(error, Uninterpreted::TooMuchMemory { at, text }.into());
    }

    #[test]
    fn instruction_beyond_registers_and_memory_is_the_reason() {
        let refused = [
            (&[0x0f, 0x30][..], "wrmsr"),
            (&[0xe6, 0x80], "out"),
            (&[0x0f, 0x01, 0xf8], "swapgs"),
            (&[0xf4], "hlt"),
            (&[0x0f, 0x22, 0xd8], "mov cr3"),
            (&[0x48, 0xcf], "iretq"),
        ];
        let error = run(&[0xfb]).expect_err("sti");
        let (at, text) = (Gva(FUNCTION), "sti".to_owned());
        assert_eq!(error, Uninterpreted::Beyond { at, text }.into());
        for (code, name) in refused {
            let error = run(code).expect_err(name).to_string();
            assert!(error.contains(&format!("`{name}")), "{error}");
        }
    }

    #[test]
    fn code_that_cannot_be_read_is_the_reason() {
        // jmp out of the readable memory
        let error = run(&[0xe9, 0, 0x10, 0, 0]).expect_err("no code");
        assert!(error.to_string().contains("no instruction"), "{error}");
    }
}
