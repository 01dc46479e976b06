//! An instruction on a hidden page, with the probes there.

use iced_x86::{FlowControl, Mnemonic};
use introspect::PagingState;
use introspect::insn::Decoded;
use vmm::kvm_regs;

use super::code_table::CodeSite;
use super::mark_counter::ReadCounter;
use crate::hit_state::HitState;

/// An instruction that is about to be executed on a hidden page, with the probes there.
#[derive(Debug)]
pub(crate) struct CodeHit {
    pub(crate) sites: Vec<CodeSite>,
    /// The counter of a probed mark that the instruction reads.
    pub(crate) counter: Option<Box<ReadCounter>>,
    /// The offset of the instruction in the file, bytes.
    pub(crate) at: u64,
    pub(crate) leaving: Leaving,
    /// The registers in front of the instruction.
    pub(crate) regs: kvm_regs,
    /// The system registers in front of the instruction, if the hardware executes it: the vCPU may be in the kernel behind it.
    pub(crate) state: Option<Box<ProgramState>>,
}

/// The system registers of a vCPU in a program.
#[derive(Clone, Debug)]
pub(crate) struct ProgramState {
    /// The program's own page tables.
    pub(crate) paging: PagingState,
    /// The state as the kernel needs it: the program's `gs` and page tables do not show the kernel's data.
    pub(crate) kernel: HitState,
}

/// An instruction on a hidden page, after a comparison of the page with the file.
#[derive(Debug)]
pub(crate) enum OnPage {
    /// The page belongs to another use.
    Outdated,
    /// An instruction that is probed, or reads the counter of a probed mark, is about to be executed.
    Hit(CodeHit),
    /// No probe needs the instruction, or the page is not hidden.
    NoHit,
}

/// The way in which an instruction may leave its function for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The instruction does not.
    Never,
    /// By a return.
    Return,
    /// By a jump: to another part of the function, or to another function, from which the call returns.
    Jump,
}

impl Leaving {
    pub(crate) fn of(decoded: &Decoded) -> Self {
        let instruction = decoded.instruction();
        match instruction.flow_control() {
            FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => Self::Return,
            FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::ConditionalBranch => Self::Jump,
            _ => Self::Never,
        }
    }
}
