//! One look at every instruction.

use std::ops::Range;

use iced_x86::{FlowControl, Instruction, OpKind};

use super::tables::relative_targets;
use crate::insn::{Decoded, decode};
use crate::{Gva, ImageSource};

/// A function whose tables have so many entries is not believed.
const MAX_TABLED: usize = 1 << 16;

/// What is found out function by function.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Where branches go, and every address of code that an instruction has in it.
    pub(super) arrivals: Vec<Gva>,
    /// Where the bytes of a function stop being instructions, in the order of the functions.
    pub(super) undecodable: Vec<Gva>,
    /// Code inside functions whose address somebody takes who jumps indirectly, in no order: targets may be counted from
    /// there.
    pub(super) counted_from: Vec<Gva>,
}

/// What the sweep needs to know of the kernel around a function.
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

/// The one of `functions`, which are in order, that holds `at`.
pub(super) fn function_at(functions: &[Range<Gva>], at: Gva) -> Option<&Range<Gva>> {
    let behind = functions.partition_point(|found| found.start <= at);
    let function = functions[..behind].last()?;
    function.contains(&at).then_some(function)
}

impl Sweep {
    /// Takes in `function`. `bytes` are those of it that can be had.
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
                // What follows is a guess, and too many branches are better than too few.
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

    /// A jump that is not direct goes to an address that is stored in the kernel's data, which is an arrival anyway, or
    /// to one that is put together from one that an instruction mentions: a table of distances, or code itself.
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

/// The addresses that an instruction has in it, as immediates or as what a memory operand is relative to.
fn mentioned(insn: &Instruction, mut tell: impl FnMut(Gva)) {
    for operand in 0..insn.op_count() {
        match insn.op_kind(operand) {
            OpKind::Immediate64 | OpKind::Immediate32to64 => {
                tell(Gva(insn.immediate(operand)));
            }
            OpKind::Memory if insn.memory_displ_size() >= 4 => {
                tell(Gva(insn.memory_displacement64()));
            }
            _ => (),
        }
    }
}
