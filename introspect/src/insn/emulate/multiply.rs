//! Multiplication and division.
//!
//! Flags undefined in the manuals keep their value, except the flags of `mul` and `imul` derived
//! from the result by every processor.

use iced_x86::Mnemonic;

use super::effects::{Effects, Stop};
use super::flags::{self, CARRY, OVERFLOW};
use super::operand::operand_width;
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr};
use crate::insn::reason::Reason;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let width = operand_width(cpu.insn, 0)?;
    match cpu.insn.mnemonic() {
        Mnemonic::Imul if cpu.insn.op_count() > 1 => multiply_into(cpu, width),
        Mnemonic::Mul | Mnemonic::Imul => multiply(cpu, width),
        Mnemonic::Div => divide(cpu, width),
        Mnemonic::Idiv => divide_signed(cpu, width),
        _ => Err(Reason::Unmodelled.into()),
    }
}

/// `imul r, rm` and `imul r, rm, imm`: the low half only.
fn multiply_into<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    let first = cpu.insn.op_count() - 2;
    let a = cpu.operand(first, width)?;
    let b = cpu.operand(first + 1, width)?;
    let (low, high) = product_signed(width, a, b);
    set_product_flags(cpu, high != sign_of(width, low));
    cpu.set_operand(0, width, low)
}

/// `mul rm` and `imul rm`: the accumulator by the operand, into two registers.
fn multiply<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    let a = width.truncate(cpu.gpr(Gpr::Rax));
    let b = cpu.operand(0, width)?;
    let (low, high, overflow) = if cpu.insn.mnemonic() == Mnemonic::Mul {
        let (low, high) = split(width, u128::from(a) * u128::from(b));
        (low, high, high != 0)
    } else {
        let (low, high) = product_signed(width, a, b);
        (low, high, high != sign_of(width, low))
    };
    set_product_flags(cpu, overflow);
    set_pair(cpu, width, low, high);
    Ok(())
}

fn product_signed(width: Width, a: u64, b: u64) -> (u64, u64) {
    let product = i128::from(width.signed(a)) * i128::from(width.signed(b));
    split(width, product.cast_unsigned())
}

/// The upper half for `low` as a signed number of double width.
fn sign_of(width: Width, low: u64) -> u64 {
    flags::when(low & width.sign() != 0, width.mask())
}

fn set_product_flags<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, overflow: bool) {
    cpu.flags
        .set(CARRY | OVERFLOW, flags::when(overflow, CARRY | OVERFLOW));
}

/// The dividend, or the product: AH:AL, DX:AX, EDX:EAX or RDX:RAX.
fn set_pair<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width, low: u64, high: u64) {
    cpu.set_gpr_low(Gpr::Rax, width, low);
    if width == Width::B1 {
        cpu.set_gpr_second_byte(Gpr::Rax, high);
    } else {
        cpu.set_gpr_low(Gpr::Rdx, width, high);
    }
}

fn pair<C: Cpu + ?Sized>(cpu: &Effects<'_, C>, width: Width) -> u128 {
    let low = width.truncate(cpu.gpr(Gpr::Rax));
    let high = if width == Width::B1 {
        cpu.gpr(Gpr::Rax) >> 8 & 0xff
    } else {
        width.truncate(cpu.gpr(Gpr::Rdx))
    };
    u128::from(high) << width.bits() | u128::from(low)
}

fn divide<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    let divisor = u128::from(cpu.operand(0, width)?);
    let dividend = pair(cpu, width);
    let quotient = dividend.checked_div(divisor).ok_or(Reason::DivideError)?;
    if quotient > u128::from(width.mask()) {
        return Err(Reason::DivideError.into());
    }
    let (quotient, _) = split(width, quotient);
    let (remainder, _) = split(width, dividend % divisor);
    set_pair(cpu, width, quotient, remainder);
    Ok(())
}

fn divide_signed<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    let divisor = i128::from(width.signed(cpu.operand(0, width)?));
    let unused = 128 - 2 * width.bits();
    let dividend = (pair(cpu, width) << unused).cast_signed() >> unused;
    let quotient = dividend.checked_div(divisor).ok_or(Reason::DivideError)?;
    let remainder = dividend.checked_rem(divisor).ok_or(Reason::DivideError)?;
    let (low, _) = split(width, quotient.cast_unsigned());
    if i128::from(width.signed(low)) != quotient {
        return Err(Reason::DivideError.into());
    }
    let (remainder, _) = split(width, remainder.cast_unsigned());
    set_pair(cpu, width, low, remainder);
    Ok(())
}

/// The low and the high half of a value of double width.
fn split(width: Width, value: u128) -> (u64, u64) {
    let low = value & u128::from(width.mask());
    let high = value >> width.bits() & u128::from(width.mask());
    // Both are masked to 64 bits or fewer.
    (
        u64::try_from(low).unwrap_or(u64::MAX),
        u64::try_from(high).unwrap_or(u64::MAX),
    )
}
