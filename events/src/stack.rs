//! The stacks of hits, returns and vCPUs.

use serde::{Deserialize, Serialize};

use crate::hex::Hex;
use crate::typed::Task;

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
    /// The module of the function.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub module: Option<String>,
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

/// The kernel stack of a vCPU.
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
}
