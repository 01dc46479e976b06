//! Shifts and rotations.
//!
//! The manuals leave OF undefined after more than one position, AF after a shift, and CF after
//! shifting everything out. Here the flags follow AMD's processors: OF by the formula for one
//! position, AF set.

use iced_x86::Mnemonic;

use super::effects::{Effects, Stop};
use super::flags::{self, ADJUST, CARRY, OVERFLOW, STATUS, when};
use super::operand::operand_width;
use super::width::Width;
use crate::insn::cpu::Cpu;
use crate::insn::reason::Reason;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let width = operand_width(cpu.insn, 0)?;
    let old = cpu.operand_to_write(0, width)?;
    let last = cpu.insn.op_count() - 1;
    let count = cpu.operand(last, Width::B1)? & if width == Width::B8 { 63 } else { 31 };
    // Fits: at most 63.
    let count = u32::try_from(count).unwrap_or(0);
    if count == 0 {
        // No flags change, but the operand is written all the same.
        return cpu.set_operand(0, width, old);
    }
    let carry = cpu.flags.was_set(CARRY);
    let (which, result, flags) = match cpu.insn.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal => shifted(width, shl(width, old, count), false),
        Mnemonic::Shr => shifted(width, shr(width, old, count), true),
        Mnemonic::Sar => shifted(width, sar(width, old, count), true),
        Mnemonic::Rol => rotated(width, rol(width, old, count), false),
        Mnemonic::Ror => rotated(width, ror(width, old, count), true),
        Mnemonic::Rcl => rotated(width, rcl(width, old, count, carry), false),
        Mnemonic::Rcr => rotated(width, rcr(width, old, count, carry), true),
        Mnemonic::Shld | Mnemonic::Shrd => {
            // 16 bits by more than 16 is undefined, the result included.
            if count > width.bits() {
                return Err(Reason::UndefinedResult.into());
            }
            let other = cpu.operand(1, width)?;
            let left = cpu.insn.mnemonic() == Mnemonic::Shld;
            shifted(width, double(width, old, other, count, left), !left)
        }
        _ => return Err(Reason::Unmodelled.into()),
    };
    cpu.flags.set(which, flags);
    cpu.set_operand(0, width, result)
}

/// All flags of a shift.
fn shifted(width: Width, (result, out): (u64, bool), right: bool) -> (u64, u64, u64) {
    let flags = flags::of_result(width, result) | ADJUST | when(out, CARRY);
    (STATUS, result, flags | overflow(width, result, out, right))
}

/// A rotation leaves SF, ZF, AF and PF alone.
fn rotated(width: Width, (result, out): (u64, bool), right: bool) -> (u64, u64, u64) {
    (
        CARRY | OVERFLOW,
        result,
        when(out, CARRY) | overflow(width, result, out, right),
    )
}

/// OF: whether the sign changed in the last position moved, derived from the result.
fn overflow(width: Width, result: u64, out: bool, right: bool) -> u64 {
    let top = result & width.sign() != 0;
    let other = if right {
        result & width.sign() >> 1 != 0
    } else {
        out
    };
    when(top != other, OVERFLOW)
}

fn bit(value: u64, position: u32) -> bool {
    value >> position & 1 != 0
}

fn shl(width: Width, old: u64, count: u32) -> (u64, bool) {
    let out = count <= width.bits() && bit(old, width.bits() - count);
    (width.truncate(old << count), out)
}

fn shr(_width: Width, old: u64, count: u32) -> (u64, bool) {
    (old >> count, bit(old, count - 1))
}

fn sar(width: Width, old: u64, count: u32) -> (u64, bool) {
    let signed = width.signed(old);
    let out = signed >> (count - 1) & 1 != 0;
    (width.truncate((signed >> count).cast_unsigned()), out)
}

fn rol(width: Width, old: u64, count: u32) -> (u64, bool) {
    let by = count % width.bits();
    let result = if by == 0 {
        old
    } else {
        old << by | old >> (width.bits() - by)
    };
    let result = width.truncate(result);
    (result, bit(result, 0))
}

fn ror(width: Width, old: u64, count: u32) -> (u64, bool) {
    let by = count % width.bits();
    let result = if by == 0 {
        old
    } else {
        old >> by | old << (width.bits() - by)
    };
    let result = width.truncate(result);
    (result, result & width.sign() != 0)
}

/// Rotates through the carry: the width plus one bit goes round.
fn rcl(width: Width, old: u64, count: u32, carry: bool) -> (u64, bool) {
    (0..count % (width.bits() + 1)).fold((old, carry), |(value, carry), _| {
        (
            width.truncate(value << 1) | u64::from(carry),
            value & width.sign() != 0,
        )
    })
}

fn rcr(width: Width, old: u64, count: u32, carry: bool) -> (u64, bool) {
    (0..count % (width.bits() + 1)).fold((old, carry), |(value, carry), _| {
        (value >> 1 | when(carry, width.sign()), value & 1 != 0)
    })
}

/// `shld` and `shrd`, by 1..=width: the bits shifted in are the bits of `other`.
fn double(width: Width, old: u64, other: u64, count: u32, left: bool) -> (u64, bool) {
    let bits = width.bits();
    // A count of the whole width (possible only with 16 bits) leaves just the other operand.
    let rest = |value: u64, by: u32| if by == 0 { value } else { value >> by };
    if left {
        (
            width.truncate(old << count | rest(other, bits - count)),
            bit(old, bits - count),
        )
    } else {
        (
            width.truncate(old >> count | other << (bits - count)),
            bit(old, count - 1),
        )
    }
}
