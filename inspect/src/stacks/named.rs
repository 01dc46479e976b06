//! Stacks with the names of their functions.

use address::Gva;

/// A function on a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFrame {
    /// The address of the instruction that is executed next in the function.
    pub address: Gva,
    /// The address as `symbol+0xoffset/0xsize`; `None` for code without a symbol.
    pub symbol: Option<String>,
    /// The module of the function.
    pub module: Option<String>,
}

/// A stack with names.
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
