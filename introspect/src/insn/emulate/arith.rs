//! Addition, subtraction and comparison.

use iced_x86::Mnemonic;

use super::effects::{Effects, Stop};
use super::flags::{self, CARRY, STATUS, ZERO};
use super::operand::{is_memory, operand_width};
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr};
use crate::insn::reason::Reason;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let width = operand_width(cpu.insn, 0)?;
    let mnemonic = cpu.insn.mnemonic();
    let old = match mnemonic {
        Mnemonic::Cmp => cpu.operand(0, width)?,
        _ => cpu.operand_to_write(0, width)?,
    };
    let carry = cpu.flags.was_set(CARRY);
    // `inc` and `dec` leave the carry alone.
    let (which, (result, flags)) = match mnemonic {
        Mnemonic::Inc => (STATUS & !CARRY, flags::add(width, old, 1, false)),
        Mnemonic::Dec => (STATUS & !CARRY, flags::sub(width, old, 1, false)),
        Mnemonic::Neg => (STATUS, flags::sub(width, 0, old, false)),
        Mnemonic::Cmpxchg => return compare_exchange(cpu, width, old),
        _ => {
            let by = cpu.operand(1, width)?;
            let sum = match mnemonic {
                Mnemonic::Add | Mnemonic::Xadd => flags::add(width, old, by, false),
                Mnemonic::Adc => flags::add(width, old, by, carry),
                Mnemonic::Sub | Mnemonic::Cmp => flags::sub(width, old, by, false),
                Mnemonic::Sbb => flags::sub(width, old, by, carry),
                _ => return Err(Reason::Unmodelled.into()),
            };
            (STATUS, sum)
        }
    };
    cpu.flags.set(which, flags);
    match mnemonic {
        Mnemonic::Cmp => Ok(()),
        Mnemonic::Xadd => {
            // In this order: if both operands are the same register, the register keeps the sum.
            cpu.set_operand(1, width, old)?;
            cpu.set_operand(0, width, result)
        }
        _ => cpu.set_operand(0, width, result),
    }
}

fn compare_exchange<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    width: Width,
    old: u64,
) -> Result<(), Stop> {
    let expected = width.truncate(cpu.gpr(Gpr::Rax));
    let (_, flags) = flags::sub(width, expected, old, false);
    cpu.flags.set(STATUS, flags);
    if flags & ZERO != 0 {
        let new = cpu.operand(1, width)?;
        cpu.set_operand(0, width, new)
    } else if width == Width::B4 && !is_memory(cpu.insn, 0) && cpu.full_register(0)? > width.mask()
    {
        // Processors differ in whether the upper half of the destination is cleared.
        Err(Reason::UndefinedResult.into())
    } else {
        // The hardware writes the destination in either case.
        cpu.set_operand(0, width, old)?;
        cpu.set_gpr_low(Gpr::Rax, width, old);
        Ok(())
    }
}
