//! States in which an instruction has something to work on, and touches nothing else.

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use introspect::insn::Decoded;
use reference::Random;

use super::super::layout::{DATA_BYTES, Layout, STACK_BYTES};
use super::super::snippet::{RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, State};

const DIRECTION: u64 = 1 << 10;
/// The flags that `popf` may load: not the trap flag, which has its own snippets.
const POPF_FLAGS: u64 = 0x27_7ed5;
/// Bit numbers in registers are smaller.
const MOST_BITS: u64 = 512;
const NON_CANONICAL: u64 = 0x8000_0000_0000;

/// Fits the state to the instruction in the slot at `slot`. `false` if the instruction would access memory forbidden to snippets.
pub(super) fn meet(
    random: &mut Random,
    layout: &Layout,
    slot: u64,
    decoded: &Decoded,
    state: &mut State,
) -> bool {
    let insn = decoded.instruction();
    if insn.is_string_instruction() {
        strings(random, layout, insn, state);
        return true;
    }
    operands(random, layout, insn, state);
    if is_out_of_bounds(insn) {
        return false;
    }
    if insn.op_kinds().any(|kind| kind == OpKind::Memory) {
        point(random, layout, insn, state);
    }
    if insn.is_stack_instruction() && random.one_in(12) {
        // Non-canonical, in the read-only page, or at the edge of the mapped memory.
        state.gprs[RSP] = match random.below(3) {
            0 => NON_CANONICAL,
            1 => layout.read_only() + 64,
            _ => layout.absent() - 16 + random.below(32),
        };
    }
    control(random, layout, slot, insn, state);
    touches_only(layout, insn, state)
}

pub(super) fn segment_base(segment: Register, layout: &Layout) -> u64 {
    match segment {
        Register::GS => layout.data(),
        Register::FS => layout.stack(),
        _ => 0,
    }
}

/// The address of an operand of `bytes` bytes: mostly in the data.
pub(super) fn place(random: &mut Random, layout: &Layout, bytes: usize, near: bool) -> u64 {
    let bytes = bytes.max(1) as u64;
    match random.below(24) {
        0 | 1 => layout.absent() - random.below(bytes + 8).min(48),
        2 => layout.absent() + random.below(64),
        3 | 4 => layout.read_only() + random.below(64),
        5 => layout.stack() + random.below(STACK_BYTES as u64 - 128),
        6 if !near => NON_CANONICAL - random.below(bytes + 2),
        7 if !near => NON_CANONICAL.wrapping_neg() - 1 - random.below(64),
        // Aligned, for instructions that require alignment.
        8..=14 => layout.middle() - 64 + 16 * random.below(8),
        _ => layout.middle() - 64 + random.below(128),
    }
}

fn strings(random: &mut Random, layout: &Layout, insn: &Instruction, state: &mut State) {
    let short = insn.op_kinds().any(|kind| {
        matches!(
            kind,
            OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI
        )
    });
    let mut pointer = || match random.below(10) {
        0 => layout.absent() - random.below(48),
        1 => layout.read_only() + 128 + random.below(64),
        2 if !short => NON_CANONICAL - random.below(48),
        _ => layout.middle() - 32 + random.below(64),
    };
    let base = segment_base(insn.memory_segment(), layout);
    state.gprs[RSI] = pointer().wrapping_sub(base);
    state.gprs[RDI] = pointer();
    if insn.op_kinds().all(|kind| kind != OpKind::Register) && insn.rflags_written() != 0 {
        // If both operands fault, `cmps` reads [rsi] first; TCG reads [rdi] first.
        state.gprs[RDI] = layout.middle() - 32 + random.below(64);
    }
    state.gprs[RCX] = random.below(24);
    if random.one_in(3) {
        // Comparisons then go on for a while.
        state.data = [0x5a; DATA_BYTES];
        state.gprs[RAX] = 0x5a5a_5a5a_5a5a_5a5a;
    }
    state.rflags &= !random.next() | !DIRECTION;
}

/// Sets registers to values with a meaning for the instruction.
fn operands(random: &mut Random, layout: &Layout, insn: &Instruction, state: &mut State) {
    match insn.mnemonic() {
        Mnemonic::Leave => state.gprs[RBP] = layout.stack() + 64 + random.below(64),
        Mnemonic::Xlatb => {
            let base = segment_base(insn.memory_segment(), layout);
            state.gprs[RBX] = layout.data().wrapping_sub(base);
        }
        Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => {
            let base = segment_base(insn.memory_segment(), layout);
            state.gprs[RDI] = (layout.middle() - random.below(64)).wrapping_sub(base);
        }
        // Mostly quotients that fit.
        Mnemonic::Div | Mnemonic::Idiv if !random.one_in(6) => {
            let high = random.next() >> 64u64.saturating_sub(random.below(60)).min(63);
            let sign = if random.one_in(2) { u64::MAX } else { 0 };
            state.gprs[RDX] = high ^ sign;
        }
        Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne | Mnemonic::Jrcxz | Mnemonic::Jecxz => {
            state.gprs[RCX] = random.below(3) | (random.below(2) << 32);
        }
        // Bit numbers stay within the data, for any size of the operand.
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
            if insn.op1_kind() == OpKind::Register =>
        {
            let number = random.below(2 * MOST_BITS).wrapping_sub(MOST_BITS);
            set(state, insn.op1_register(), number);
        }
        // The count is small: if the count exceeds all of 8 bits and the carry, TCG computes a wrong result.
        Mnemonic::Rcl | Mnemonic::Rcr => state.gprs[RCX] &= !0xf8,
        Mnemonic::Cmpxchg if random.one_in(2) && insn.op0_kind() == OpKind::Register => {
            let same = state.gprs[RAX];
            set(state, insn.op0_register(), same);
        }
        _ => {}
    }
}

/// Whether the address of the access is unknown, or TCG computes a wrong result.
fn is_out_of_bounds(insn: &Instruction) -> bool {
    match insn.mnemonic() {
        // A bit number in an address register is not small.
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => {
            let number = insn.op1_register().full_register();
            [insn.memory_base(), insn.memory_index()]
                .iter()
                .any(|register| register.is_gpr() && register.full_register() == number)
        }
        // Of 8 or 16 bits and the carry, by more than all of them.
        Mnemonic::Rcl | Mnemonic::Rcr => {
            let bytes = match insn.op0_kind() {
                OpKind::Register => insn.op0_register().size(),
                _ => insn.memory_size().size(),
            };
            bytes < 4 && insn.op1_kind() == OpKind::Immediate8 && insn.immediate8() & 31 > 8
        }
        _ => false,
    }
}

fn set(state: &mut State, register: Register, value: u64) {
    if register.is_gpr() {
        state.gprs[register.full_register().number()] = value;
    }
}

/// Sets base and index so that the memory operand is at an allowed address.
fn point(random: &mut Random, layout: &Layout, insn: &Instruction, state: &mut State) {
    let (base, index) = (insn.memory_base(), insn.memory_index());
    let short = base.size() == 4 || index.size() == 4;
    let place = place(random, layout, insn.memory_size().size(), short);
    let offset = place.wrapping_sub(segment_base(insn.memory_segment(), layout));
    let rest = offset.wrapping_sub(insn.memory_displacement64());
    let scale = u64::from(insn.memory_index_scale());
    let is_gpr = |register: Register| register.is_gpr();
    if is_gpr(base) && is_gpr(index) && base.full_register() != index.full_register() {
        let value = random.value();
        set(state, index, value);
        // A 32-bit index is used without the upper half.
        let used = if index.size() == 4 {
            value & 0xffff_ffff
        } else {
            value
        };
        set(state, base, rest.wrapping_sub(used.wrapping_mul(scale)));
    } else if is_gpr(base) && is_gpr(index) {
        set(state, base, rest / (scale + 1));
    } else if is_gpr(base) {
        set(state, base, rest);
    } else if is_gpr(index) {
        set(state, index, rest / scale);
    }
    // The value that an exchange compares with, if the operand is in the data.
    if insn.mnemonic() == Mnemonic::Cmpxchg && random.one_in(2) {
        let same = state.gprs[RAX].to_le_bytes();
        state.store(layout, place, &same);
    }
}

/// Puts the branch target where an indirect branch or a return reads the target, and flags where `popf` reads the flags.
fn control(random: &mut Random, layout: &Layout, slot: u64, insn: &Instruction, state: &mut State) {
    let target = match random.below(12) {
        0 => layout.absent(),
        1 => NON_CANONICAL,
        _ => Layout::target(slot),
    };
    let rsp = state.gprs[RSP];
    match insn.flow_control() {
        FlowControl::Return => state.store(layout, rsp, &target.to_le_bytes()),
        FlowControl::IndirectBranch | FlowControl::IndirectCall => {
            if insn.op0_kind() == OpKind::Register {
                set(state, insn.op0_register(), target);
            } else if let Some(at) = address(layout, insn, state) {
                state.store(layout, at, &target.to_le_bytes());
            }
        }
        _ => {}
    }
    if matches!(insn.mnemonic(), Mnemonic::Popf | Mnemonic::Popfq) {
        let image = random.next() & POPF_FLAGS;
        state.store(layout, rsp, &image.to_le_bytes());
    }
}

fn value(layout: &Layout, state: &State, register: Register) -> Option<u64> {
    if register.is_segment_register() {
        return Some(segment_base(register, layout));
    }
    if register.is_gpr() {
        let full = state.gprs[register.full_register().number()];
        return Some(if register.size() == 4 {
            full & 0xffff_ffff
        } else {
            full
        });
    }
    None
}

fn address(layout: &Layout, insn: &Instruction, state: &State) -> Option<u64> {
    insn.virtual_address(0, 0, |register, _, _| value(layout, state, register))
}

/// Whether the instruction reads and writes an operand that cannot be written.
pub(super) fn modifies_beyond(layout: &Layout, decoded: &Decoded, state: &State) -> bool {
    let insn = decoded.instruction();
    let mut factory = InstructionInfoFactory::new();
    factory.info(insn).used_memory().iter().any(|used| {
        let modifies = matches!(used.access(), OpAccess::ReadWrite | OpAccess::ReadCondWrite);
        let at = used.virtual_address(0, |register, _, _| value(layout, state, register));
        let bytes = used.memory_size().size().max(1) as u64;
        // A bit number in a register reaches further, in both directions.
        let reach = match insn.mnemonic() {
            Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => MOST_BITS / 8,
            _ => 0,
        };
        let may_write = |at: u64| layout.may_write(at.wrapping_sub(reach), bytes + 2 * reach);
        modifies && at.is_some_and(|at| !may_write(at))
    })
}

/// Whether every memory access that iced computes is allowed for snippets.
fn touches_only(layout: &Layout, insn: &Instruction, state: &State) -> bool {
    if insn.mnemonic() == Mnemonic::Xlatb {
        return true;
    }
    let mut factory = InstructionInfoFactory::new();
    factory.info(insn).used_memory().iter().all(|used| {
        let at = used.virtual_address(0, |register, _, _| value(layout, state, register));
        at.is_some_and(|at| layout.may_touch(at, used.memory_size().size().max(1) as u64))
    })
}
