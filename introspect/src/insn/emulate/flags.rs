//! The flags register: the bits, the flags of a result, and the conditions on flags.

use iced_x86::ConditionCode;

use super::width::Width;

pub(super) const CARRY: u64 = 1 << 0;
/// Always reads as 1.
pub(super) const FIXED: u64 = 1 << 1;
pub(super) const PARITY: u64 = 1 << 2;
pub(super) const ADJUST: u64 = 1 << 4;
pub(super) const ZERO: u64 = 1 << 6;
pub(super) const SIGN: u64 = 1 << 7;
pub(super) const TRAP: u64 = 1 << 8;
pub(super) const INTERRUPT: u64 = 1 << 9;
pub(super) const DIRECTION: u64 = 1 << 10;
pub(super) const OVERFLOW: u64 = 1 << 11;
pub(super) const IO_LEVEL: u64 = 3 << 12;
pub(super) const NESTED_TASK: u64 = 1 << 14;
pub(super) const RESUME: u64 = 1 << 16;
pub(super) const VIRTUAL_8086: u64 = 1 << 17;
pub(super) const ALIGNMENT: u64 = 1 << 18;
pub(super) const VIRTUAL_INTERRUPT: u64 = 1 << 19;
pub(super) const INTERRUPT_PENDING: u64 = 1 << 20;
pub(super) const IDENTIFICATION: u64 = 1 << 21;

/// The six flags set by arithmetic.
pub(super) const STATUS: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;

/// The lowest privilege allowed to turn interrupts on and off.
pub(super) const fn io_level(flags: u64) -> u64 {
    (flags & IO_LEVEL) >> IO_LEVEL.trailing_zeros()
}

/// `flag` if `set`, else nothing.
pub(super) const fn when(set: bool, flag: u64) -> u64 {
    if set { flag } else { 0 }
}

/// SF, ZF and PF of a result.
pub(super) const fn of_result(width: Width, result: u64) -> u64 {
    let even_ones = (result & 0xff).count_ones().is_multiple_of(2);
    when(result & width.sign() != 0, SIGN) | when(result == 0, ZERO) | when(even_ones, PARITY)
}

/// A sum and the flags.
pub(super) const fn add(width: Width, a: u64, b: u64, carry: bool) -> (u64, u64) {
    let result = width.truncate(a.wrapping_add(b).wrapping_add(carry as u64));
    // A bit is set at each position with a carry into the next.
    let carries = (a & b) | ((a | b) & !result);
    let overflow = (a ^ result) & (b ^ result);
    (
        result,
        of_result(width, result) | of_carries(width, carries, overflow),
    )
}

/// A difference and the flags.
pub(super) const fn sub(width: Width, a: u64, b: u64, borrow: bool) -> (u64, u64) {
    let result = width.truncate(a.wrapping_sub(b).wrapping_sub(borrow as u64));
    let borrows = (!a & b) | ((!a | b) & result);
    let overflow = (a ^ b) & (a ^ result);
    (
        result,
        of_result(width, result) | of_carries(width, borrows, overflow),
    )
}

const fn of_carries(width: Width, carries: u64, overflow: u64) -> u64 {
    when(carries & width.sign() != 0, CARRY)
        | when(carries & 8 != 0, ADJUST)
        | when(overflow & width.sign() != 0, OVERFLOW)
}

/// Whether a condition holds.
pub(super) fn holds(condition: ConditionCode, flags: u64) -> bool {
    let set = |flag| flags & flag != 0;
    let less = set(SIGN) != set(OVERFLOW);
    match condition {
        ConditionCode::None => true,
        ConditionCode::o => set(OVERFLOW),
        ConditionCode::no => !set(OVERFLOW),
        ConditionCode::b => set(CARRY),
        ConditionCode::ae => !set(CARRY),
        ConditionCode::e => set(ZERO),
        ConditionCode::ne => !set(ZERO),
        ConditionCode::be => set(CARRY | ZERO),
        ConditionCode::a => !set(CARRY | ZERO),
        ConditionCode::s => set(SIGN),
        ConditionCode::ns => !set(SIGN),
        ConditionCode::p => set(PARITY),
        ConditionCode::np => !set(PARITY),
        ConditionCode::l => less,
        ConditionCode::ge => !less,
        ConditionCode::le => less || set(ZERO),
        ConditionCode::g => !less && !set(ZERO),
    }
}
