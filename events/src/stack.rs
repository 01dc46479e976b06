//! The stacks of hits, returns and vCPUs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::hex::Hex;
use crate::task::Task;

/// A function on a stack. The first is where the probe is, or where the call has returned to; each of the others is the caller of the
/// one before, or code that an interrupt or exception has interrupted.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFrame {
    /// The address of the instruction that is executed next in the function.
    pub address: Hex,
    /// The address as `symbol+0xoffset/0xsize`; absent for code without a symbol.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub symbol: Option<String>,
    /// Whether the address lies behind a call: the code of the frame is the call, and ends before the address. Absent for `false`: the
    /// instruction at the address is executed next, as behind an interrupt.
    #[serde(skip_serializing_if = "is_false", default)]
    pub is_return_address: bool,
    /// The module of the function.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub module: Option<String>,
    /// The build-id of the module, as in the file with its debug information; absent without a module, and if the guest has none in memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub build_id: Option<String>,
    /// The place in the kernel's sources; absent without debug information.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<Box<FrameSource>>,
}

pub(crate) const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// The place of a frame in the kernel's sources.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameSource {
    /// The source file, relative to the directory of the kernel's sources.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    /// The line in the function of the frame's symbol; 0 if the compiler names none.
    pub line: u64,
    /// The inlined functions that the code at the address belongs to, the innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub inlined: Vec<InlinedCall>,
}

/// An inlined function on a stack, which has no frame of its own.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlinedCall {
    /// The function.
    pub function: String,
    /// The source file, relative to the directory of the kernel's sources.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    /// The line; 0 if the compiler names none.
    pub line: u64,
}

/// A caller of `panic`, or a return address on the stack of a panic.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The address.
    pub ip: Hex,
    /// The address as `symbol+0xoffset/0xsize`, or in hexadecimal digits for code without a symbol; with the module in brackets.
    pub symbol: String,
    /// Whether the address lies behind a call. Absent for `false`, as below an interrupt.
    #[serde(skip_serializing_if = "is_false", default)]
    pub is_return_address: bool,
    /// The build-id of the module, as in the file with its debug information; absent without a module, and if the guest has none in memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub build_id: Option<String>,
    /// The place in the kernel's sources; absent without debug information.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<Box<FrameSource>>,
}

impl From<StackFrame> for Frame {
    fn from(frame: StackFrame) -> Self {
        Self {
            ip: frame.address,
            symbol: frame.to_string(),
            is_return_address: frame.is_return_address,
            build_id: frame.build_id,
            source: frame.source,
        }
    }
}

impl Frame {
    /// The frame as on other stacks.
    #[must_use]
    pub fn to_stack_frame(&self) -> StackFrame {
        let (symbol, module) = match self.symbol.split_once(" [") {
            Some((symbol, module)) => (symbol, module.strip_suffix(']')),
            None => (self.symbol.as_str(), None),
        };
        StackFrame {
            address: self.ip,
            symbol: symbol.contains('+').then(|| symbol.to_owned()),
            is_return_address: self.is_return_address,
            module: module.map(str::to_owned),
            build_id: self.build_id.clone(),
            source: self.source.clone(),
        }
    }
}

impl StackFrame {
    /// The frame as lines of text: one for each inlined function, then the frame itself.
    #[must_use]
    pub fn text(&self) -> Vec<String> {
        let inlined = self.source.iter().flat_map(|source| &source.inlined);
        let inlined = inlined.map(|call| {
            let InlinedCall {
                function,
                file,
                line,
            } = call;
            format!("[inlined] {function}{}", place(file.as_deref(), *line))
        });
        let source = self.source.as_deref();
        let own = source.map(|source| place(source.file.as_deref(), source.line));
        inlined
            .chain([format!("{self}{}", own.unwrap_or_default())])
            .collect()
    }
}

/// ` file:line`, or nothing if the file is not known.
fn place(file: Option<&str>, line: u64) -> String {
    file.map(|file| format!(" {file}:{line}"))
        .unwrap_or_default()
}

/// As the kernel prints it: `vfs_read+0x5/0x1a0`, `nft_do_chain+0x20/0x4c0 [nf_tables]`, or the address.
impl std::fmt::Display for StackFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.symbol {
            Some(symbol) => f.write_str(symbol)?,
            None => self.address.fmt(f)?,
        }
        match &self.module {
            Some(module) => write!(f, " [{module}]"),
            None => Ok(()),
        }
    }
}

/// A function on the stack of a program.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFrame {
    /// The address of the instruction that is executed next in the function.
    pub address: Hex,
    /// The address as `function+0xoffset/0xsize`; absent if the file names no function there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub symbol: Option<String>,
    /// The path of the file in the guest; absent for code of no file.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<Arc<str>>,
    /// The offset of the instruction in the file, in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub offset: Option<Hex>,
    /// Whether the frame pointer of a function without unwind rules led here: the function may be no caller at all, and callers may be missing.
    /// Absent if false.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub by_frame_pointer: bool,
}

/// `read+0x14/0x90 (/lib/libc.so.6)`, `/bin/busybox+0x1c20`, or the address; behind a question mark, as in the kernel's traces, if the frame pointer
/// led to the function.
impl std::fmt::Display for ProgramFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.by_frame_pointer {
            f.write_str("? ")?;
        }
        match (&self.symbol, &self.file, &self.offset) {
            (Some(symbol), Some(file), _) => write!(f, "{symbol} ({file})"),
            (Some(symbol), None, _) => f.write_str(symbol),
            (None, Some(file), Some(offset)) => write!(f, "{file}+{offset}"),
            (None, ..) => self.address.fmt(f),
        }
    }
}

/// The stack of a vCPU.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuStack {
    /// The number of the vCPU, from 0.
    pub vcpu: usize,
    /// The task; absent before the kernel's first task, and in the kernel's entry code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub task: Option<Task>,
    /// Whether the vCPU runs a program: the kernel has no stack there.
    pub user_mode: bool,
    /// The functions, the innermost first.
    pub stack: Vec<StackFrame>,
    /// The reason why the stack ends early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stack_incomplete: Option<String>,
    /// The functions of the program that the vCPU runs, or that has called the kernel, the innermost first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program_stack: Option<Vec<ProgramFrame>>,
    /// The reason why the program's stack ends early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program_stack_incomplete: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inlined_functions_have_lines_before_their_frame() {
        let json = r#"{"address":"0x1","symbol":"vfs_read+0x5/0x10","source":{"file":"fs/read_write.c","line":470,
            "inlined":[{"function":"new_sync_read","file":"fs/read_write.c","line":381},{"function":"f","line":0}]}}"#;
        let frame: StackFrame = serde_json::from_str(json).expect("a frame");
        let expected = [
            "[inlined] new_sync_read fs/read_write.c:381",
            "[inlined] f",
            "vfs_read+0x5/0x10 fs/read_write.c:470",
        ];
        assert_eq!(frame.text(), expected);
        let bare = StackFrame {
            source: None,
            ..frame
        };
        assert_eq!(bare.text(), ["vfs_read+0x5/0x10"]);
    }

    #[test]
    fn frame_of_a_panic_is_that_of_other_stacks() {
        for json in [
            r#"{"address":"0xffffffffa0000005","symbol":"f+0x5/0x10","is_return_address":true,"module":"m","build_id":"00ab"}"#,
            r#"{"address":"0x1","symbol":"f+0x5/0x10","source":{"file":"a.c","line":3}}"#,
            r#"{"address":"0xffffffffa0000005","module":"m"}"#,
            r#"{"address":"0x1"}"#,
        ] {
            let frame: StackFrame = serde_json::from_str(json).expect("a frame");
            assert_eq!(Frame::from(frame.clone()).to_stack_frame(), frame);
        }
    }

    #[test]
    fn return_address_has_a_key_and_other_addresses_have_none() {
        let json = r#"{"address":"0x1"}"#;
        let interrupted: StackFrame = serde_json::from_str(json).expect("a frame");
        assert!(!interrupted.is_return_address);
        assert_eq!(serde_json::to_string(&interrupted).expect("JSON"), json);
        let caller = StackFrame {
            is_return_address: true,
            ..interrupted
        };
        assert_eq!(
            serde_json::to_string(&caller).expect("JSON"),
            r#"{"address":"0x1","is_return_address":true}"#
        );
    }
}
