//! The stacks of programs in the form of events.

use events::{Hex, ProgramFrame};
use inspect::FoundBy;
use inspect::stacks::NamedProgram;

/// The stack of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramPart {
    /// The functions, the innermost first; `None` if no program has called the kernel here.
    pub frames: Option<Vec<ProgramFrame>>,
    /// The reason why the stack ends early.
    pub incomplete: Option<String>,
}

impl From<NamedProgram> for ProgramPart {
    fn from(stack: NamedProgram) -> Self {
        let frames = stack.frames.into_iter().map(|frame| ProgramFrame {
            address: frame.ip.into(),
            symbol: frame.symbol,
            file: frame.file,
            offset: frame.offset.map(Hex),
            by_frame_pointer: frame.found_by == FoundBy::FramePointer,
        });
        Self {
            frames: Some(frames.collect()),
            incomplete: stack.incomplete,
        }
    }
}
