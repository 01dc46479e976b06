//! The functions on the stack of a program, and the end of the stack.

use std::sync::Arc;

use address::Gva;
use thiserror::Error;

use super::unwind::NoCaller;

/// How a function on a program's stack was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// The program's registers.
    Registers,
    /// The unwind rule of the function that this function has called, or that has interrupted this function.
    Rule,
    /// The frame pointer of a function without unwind rules, of this function's callee or of one further in: the function may be no caller at all.
    FramePointer,
}

/// An instruction on a program's stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFrame {
    /// The instruction that is executed next in this function.
    pub ip: Gva,
    /// `function+0xoffset/0xsize`; `None` if the file names no function there.
    pub symbol: Option<String>,
    /// The path of the file, as `/proc/PID/maps` shows it; `None` for code that is mapped from no file.
    pub file: Option<Arc<str>>,
    /// The offset of the instruction in the file, in bytes.
    pub offset: Option<u64>,
    /// How the function was found.
    pub found_by: FoundBy,
}

/// A program's stack, the innermost function first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramStack {
    /// The frames.
    pub frames: Vec<ProgramFrame>,
    /// The reason why the last frame is not the end of the stack.
    pub incomplete: Option<StackEnd>,
}

/// The reason why a program's stack ends early.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StackEnd {
    /// The limit is reached.
    #[error("the program's stack has more than {0} frames")]
    TooMany(usize),
    /// What may be read for the stack is used up.
    #[error("the program's stack needs more than {0} bytes of reads")]
    TooMuch(usize),
    /// The registers are not on the task's stack: the processor changes to another task, or is in entry code.
    #[error(
        "the kernel has not saved the program's registers on the stack of the current task yet"
    )]
    NotSaved,
    /// The registers cannot be read.
    #[error("the program's registers cannot be read at {0}")]
    NoRegisters(Gva),
    /// The address space may be that of the program before.
    #[error("the task is about to run another program")]
    InExec,
    /// The registers are those of another mode.
    #[error("the program is not a 64-bit program")]
    NotLong,
    /// The program has ended, or is a thread of the kernel.
    #[error("the task has no program")]
    NoProgram,
    /// No mapping, or one that the kernel's lists do not lead to.
    #[error("no file is mapped at {0}")]
    NotMapped(Gva),
    /// Code that the program has made, or an image that is no file.
    #[error("the code at {0} is of no file")]
    NoFile(Gva),
    /// Behind a frame pointer, a rule has led to an address that is no return address: the frame pointer was none, or a signal's handler returns to the
    /// address.
    #[error("a frame pointer was followed before, and {0} lies behind no call")]
    NoCall(Gva),
    /// The file is not a program's, or its beginning is not in memory.
    #[error(
        "the headers of the file at {0} are not in memory, or are not those of a 64-bit program"
    )]
    NoHeaders(Gva),
    /// The rules of the file do not lead on.
    #[error("the code at {at} has {why}")]
    NoCaller {
        /// The instruction.
        at: Gva,
        /// The reason.
        why: NoCaller,
    },
    /// The caller's frame lies below.
    #[error("the frame of the caller of {0} lies below its own")]
    WrongDirection(Gva),
}

impl StackEnd {
    /// Whether the code has no unwind rule: no code, code made at run time, or code of a file without rules.
    pub(super) const fn is_without_rules(&self) -> bool {
        matches!(
            self,
            Self::NotMapped(_)
                | Self::NoFile(_)
                | Self::NoCaller {
                    why: NoCaller::NoRule,
                    ..
                }
        )
    }
}
