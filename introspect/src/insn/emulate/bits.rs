//! Single bits, and counting them.

use iced_x86::Mnemonic;

use super::effects::{Effects, Stop};
use super::flags::{CARRY, STATUS, ZERO, when};
use super::operand::{is_memory, operand_width};
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr};
use crate::insn::reason::Reason;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let width = operand_width(cpu.insn, 0)?;
    let features = cpu.cpu.features();
    let required = |present: bool| {
        if present {
            Ok(())
        } else {
            Err(Reason::MissingFeature)
        }
    };
    match cpu.insn.mnemonic() {
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => test_bit(cpu, width),
        Mnemonic::Bsf | Mnemonic::Bsr => scan(cpu, width),
        Mnemonic::Popcnt => {
            required(features.popcnt)?;
            let source = cpu.operand(1, width)?;
            cpu.flags.set(STATUS, when(source == 0, ZERO));
            cpu.set_operand(0, width, u64::from(source.count_ones()))
        }
        Mnemonic::Tzcnt => {
            required(features.bmi1)?;
            let source = cpu.operand(1, width)?;
            count_zeros(
                cpu,
                width,
                source,
                source.trailing_zeros().min(width.bits()),
            )
        }
        Mnemonic::Lzcnt => {
            required(features.lzcnt)?;
            let source = cpu.operand(1, width)?;
            count_zeros(
                cpu,
                width,
                source,
                source.leading_zeros() - (64 - width.bits()),
            )
        }
        _ => Err(Reason::Unmodelled.into()),
    }
}

fn count_zeros<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    width: Width,
    source: u64,
    zeros: u32,
) -> Result<(), Stop> {
    cpu.flags.set(
        CARRY | ZERO,
        when(source == 0, CARRY) | when(zeros == 0, ZERO),
    );
    cpu.set_operand(0, width, u64::from(zeros))
}

fn scan<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    let source = cpu.operand(1, width)?;
    cpu.flags.set(ZERO, when(source == 0, ZERO));
    let position = if cpu.insn.mnemonic() == Mnemonic::Bsf {
        source.checked_ilog2().map(|_| source.trailing_zeros())
    } else {
        source.checked_ilog2()
    };
    match position {
        Some(position) => cpu.set_operand(0, width, u64::from(position)),
        // If no bit is set, the destination keeps its value on all processors; but for 32-bit
        // operands some processors clear the upper half even then.
        None if width == Width::B4 && cpu.full_register(0)? > width.mask() => {
            Err(Reason::UndefinedResult.into())
        }
        None => Ok(()),
    }
}

fn test_bit<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    let index = cpu.operand(1, width)?;
    let bit = 1 << (index & u64::from(width.bits() - 1));
    // A bit number in a register reaches beyond the memory operand, in both directions.
    let reaches = is_memory(cpu.insn, 0) && cpu.insn.try_immediate(1).is_err();
    let at = if is_memory(cpu.insn, 0) {
        let units = width.signed(index) >> width.bits().trailing_zeros();
        let beyond = if reaches {
            units.cast_unsigned().wrapping_mul(width.bytes() as u64)
        } else {
            0
        };
        let offset = cpu.memory_offset(cpu.gpr(Gpr::Rsp), beyond)?;
        Some(cpu.linear(offset)?)
    } else {
        None
    };
    let old = match at {
        Some(at) if cpu.insn.mnemonic() == Mnemonic::Bt => cpu.read(at, width)?,
        Some(at) => cpu.read_to_write(at, width)?,
        None => cpu.operand(0, width)?,
    };
    cpu.flags.set(CARRY, when(old & bit != 0, CARRY));
    let new = match cpu.insn.mnemonic() {
        Mnemonic::Bts => old | bit,
        Mnemonic::Btr => old & !bit,
        Mnemonic::Btc => old ^ bit,
        _ => return Ok(()),
    };
    match at {
        Some(at) => cpu.write(at, width, new),
        None => cpu.set_operand(0, width, new),
    }
}
