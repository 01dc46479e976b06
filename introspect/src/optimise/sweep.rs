//! A pass over every instruction.

use std::ops::Range;

use address::Gva;
use iced_x86::{FlowControl, Instruction, OpKind};

use super::tables::relative_targets;
use crate::ImageSource;
use crate::insn::{Decoded, decode};

/// The most table entries of a function. At the limit, the function's indirect jump counts as a
/// jump to any instruction.
const MAX_TABLED: usize = 1 << 16;

/// The results of the pass, function by function.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The branch targets, and all code addresses in instructions.
    pub(super) arrivals: Vec<Gva>,
    /// The first undecodable or unreadable address of each function that has any, in the order of
    /// the functions.
    pub(super) undecodable: Vec<Gva>,
    /// Code addresses inside functions, taken by functions with an indirect jump, in no order: jump
    /// targets may be counted from these addresses.
    pub(super) counted_from: Vec<Gva>,
}

/// The sweep's view of the kernel around a function.
pub(super) struct Surroundings<'a> {
    pub(super) source: &'a dyn ImageSource,
    /// All code, and perhaps more.
    pub(super) code: &'a [Range<Gva>],
    /// The retpolines, in order.
    pub(super) thunks: &'a [Range<Gva>],
    /// In order; they do not overlap.
    pub(super) functions: &'a [Range<Gva>],
}

impl Surroundings<'_> {
    fn holds_code(&self, at: Gva) -> bool {
        self.code.iter().any(|range| range.contains(&at))
    }

    fn is_thunk(&self, at: Gva) -> bool {
        function_at(self.thunks, at).is_some()
    }
}

/// The range of `functions`, which are in order, that holds `at`.
pub(super) fn function_at(functions: &[Range<Gva>], at: Gva) -> Option<&Range<Gva>> {
    let behind = functions.partition_point(|found| found.start <= at);
    let function = functions[..behind].last()?;
    function.contains(&at).then_some(function)
}

impl Sweep {
    /// Adds the results for `function`. `bytes` are the readable bytes of the function.
    pub(super) fn function(
        &mut self,
        around: &Surroundings<'_>,
        function: &Range<Gva>,
        bytes: &[u8],
    ) {
        let mut jumps_indirectly = false;
        let mut addresses = Vec::new();
        let mut stop = None;
        let mut at = 0;
        while at < bytes.len() {
            let here = function.start.wrapping_add(at as u64);
            let Ok(decoded) = decode(&bytes[at..], here) else {
                // From here on, instructions are a guess, and too many branches are better than too
                // few.
                stop = stop.or(Some(here));
                at += 1;
                continue;
            };
            at += decoded.len();
            self.arrivals.extend(decoded.branch_target());
            jumps_indirectly |= is_indirect_jump(around, &decoded);
            mentioned(decoded.instruction(), |address| addresses.push(address));
        }
        let end = function.start.wrapping_add(bytes.len() as u64);
        self.undecodable
            .extend(stop.or((end < function.end).then_some(end)));
        let in_code = |address: &Gva| around.holds_code(*address);
        self.arrivals
            .extend(addresses.iter().copied().filter(in_code));
        if jumps_indirectly {
            addresses.sort_unstable();
            addresses.dedup();
            self.indirect_jump(around, function, &addresses);
        }
    }

    /// An indirect jump goes to an address stored in the kernel's data, which is an arrival anyway,
    /// or to an address computed from an address in an instruction: the address of a table of
    /// distances, or of code.
    fn indirect_jump(
        &mut self,
        around: &Surroundings<'_>,
        function: &Range<Gva>,
        addresses: &[Gva],
    ) {
        let mut left = MAX_TABLED;
        for &address in addresses {
            match function_at(around.functions, address) {
                Some(other) if other.start == address => (),
                Some(_) => self.counted_from.push(address),
                None => {
                    let targets = relative_targets(around.source, address, function, left);
                    left -= targets.len();
                    self.arrivals.extend(targets);
                }
            }
        }
        if left == 0 {
            self.counted_from.push(function.start);
        }
    }
}

fn is_indirect_jump(around: &Surroundings<'_>, decoded: &Decoded) -> bool {
    match decoded.instruction().flow_control() {
        FlowControl::IndirectBranch => true,
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => decoded
            .branch_target()
            .is_some_and(|target| around.is_thunk(target)),
        _ => false,
    }
}

/// Passes to `report` the addresses in an instruction: immediates, and displacements of memory
/// operands.
fn mentioned(insn: &Instruction, mut report: impl FnMut(Gva)) {
    for operand in 0..insn.op_count() {
        match insn.op_kind(operand) {
            OpKind::Immediate64 | OpKind::Immediate32to64 => {
                report(Gva(insn.immediate(operand)));
            }
            OpKind::Memory if insn.memory_displ_size() >= 4 => {
                report(Gva(insn.memory_displacement64()));
            }
            _ => (),
        }
    }
}
