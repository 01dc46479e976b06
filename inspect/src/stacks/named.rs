//! Stacks with the names of their functions.

use address::Gva;

use crate::programs::{ProgramFrame, ProgramStack};

/// A function of the kernel on a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFrame {
    /// The address of the instruction that is executed next in the function.
    pub address: Gva,
    /// Whether the instruction before is a call.
    pub is_return_address: bool,
    /// The address as `symbol+0xoffset/0xsize`; `None` for code without a symbol.
    pub symbol: Option<String>,
    /// The module of the function.
    pub module: Option<String>,
    /// The build-id of the module.
    pub build_id: Option<String>,
}

/// A kernel stack with names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedStack {
    /// The frames, the innermost function first.
    pub frames: Vec<NamedFrame>,
    /// The reason why the stack ends early.
    pub incomplete: Option<String>,
}

impl NamedStack {
    /// No frame, and the reason.
    #[must_use]
    pub fn without_frames(why: impl ToString) -> Self {
        Self {
            frames: Vec::new(),
            incomplete: Some(why.to_string()),
        }
    }
}

/// A program's stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedProgram {
    /// The frames, the innermost function first.
    pub frames: Vec<ProgramFrame>,
    /// The reason why the stack ends early.
    pub incomplete: Option<String>,
}

impl NamedProgram {
    /// No frame, and the reason.
    pub(super) fn without_frames(why: String) -> Self {
        Self {
            frames: Vec::new(),
            incomplete: Some(why),
        }
    }
}

impl From<ProgramStack> for NamedProgram {
    fn from(stack: ProgramStack) -> Self {
        Self {
            frames: stack.frames,
            incomplete: stack.incomplete.map(|end| end.to_string()),
        }
    }
}
