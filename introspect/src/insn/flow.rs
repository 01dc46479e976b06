//! Branches that decide whether a probe may displace several instructions at once.
//!
//! No branch may enter the middle of a probe replacing more than one instruction. Direct branches
//! can be listed; the target of an indirect jump cannot be known from the code.

use std::ops::Range;

use address::Gva;
use iced_x86::{FlowControl, Mnemonic};

use super::boundary::boundaries;
use super::decode::{DecodeError, Decoded};

/// The next address of a vCPU after an instruction, if only RIP and the stack pointer change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the next instruction: a nop, or an `endbr64`.
    Next,
    /// To a fixed address.
    Jump(Gva),
    /// To a fixed address, with the address of the next instruction pushed.
    Call(Gva),
    /// The instruction changes more state, or the next address is not fixed.
    Other,
}

/// The step of a vCPU over `decoded`.
#[must_use]
pub fn step(decoded: &Decoded) -> Step {
    let insn = decoded.instruction();
    match (
        insn.mnemonic(),
        insn.flow_control(),
        decoded.branch_target(),
    ) {
        (Mnemonic::Nop | Mnemonic::Endbr64, ..) => Step::Next,
        (_, FlowControl::UnconditionalBranch, Some(target)) => Step::Jump(target),
        (_, FlowControl::Call, Some(target)) => Step::Call(target),
        _ => Step::Other,
    }
}

/// A direct branch found in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The address of the branch.
    pub at: Gva,
    /// The branch target.
    pub target: Gva,
}

/// The first direct jump, conditional jump, loop or call from the function into `range`.
///
/// Exclude the first address of a displaced range from `range`: a branch to the first address is
/// harmless.
///
/// # Errors
///
/// When not all of the function decodes, since a branch may then have been overlooked.
pub fn branch_into(
    function_bytes: &[u8],
    start: Gva,
    range: &Range<Gva>,
) -> Result<Option<Branch>, DecodeError> {
    for found in boundaries(function_bytes, start) {
        let decoded = found?;
        if let Some(target) = decoded.branch_target()
            && range.contains(&target)
        {
            return Ok(Some(Branch {
                at: decoded.at(),
                target,
            }));
        }
    }
    Ok(None)
}

/// The first indirect jump in the function; `None` if the function has no indirect jump.
///
/// `thunks` are the ranges of retpoline thunks: a direct jump into a thunk is an indirect jump in
/// disguise. Indirect calls do not count: they return behind themselves.
///
/// # Errors
///
/// When not all of the function decodes.
pub fn indirect_jump(
    function_bytes: &[u8],
    start: Gva,
    thunks: &[Range<Gva>],
) -> Result<Option<Gva>, DecodeError> {
    for found in boundaries(function_bytes, start) {
        let decoded = found?;
        let through_thunk = || {
            let target = decoded.branch_target();
            target.is_some_and(|target| thunks.iter().any(|thunk| thunk.contains(&target)))
        };
        let indirect = match decoded.instruction().flow_control() {
            FlowControl::IndirectBranch => true,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => through_thunk(),
            _ => false,
        };
        if indirect {
            return Ok(Some(decoded.at()));
        }
    }
    Ok(None)
}

/// Whether the function has an indirect jump; see [`indirect_jump`].
///
/// # Errors
///
/// When not all of the function decodes.
pub fn has_indirect_jump(
    function_bytes: &[u8],
    start: Gva,
    thunks: &[Range<Gva>],
) -> Result<bool, DecodeError> {
    Ok(indirect_jump(function_bytes, start, thunks)?.is_some())
}
