//! Moving and converting values.

use iced_x86::{ConditionCode, Mnemonic};

use super::effects::{Effects, Stop};
use super::flags;
use super::operand::operand_width;
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr};
use crate::insn::reason::Reason;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let condition = cpu.insn.condition_code();
    if condition != ConditionCode::None {
        return conditional(cpu, condition);
    }
    match cpu.insn.mnemonic() {
        Mnemonic::Mov => {
            let width = operand_width(cpu.insn, 0)?;
            let value = cpu.operand(1, width)?;
            cpu.set_operand(0, width, value)
        }
        Mnemonic::Movzx => extend(cpu, |_, value| value),
        Mnemonic::Movsx | Mnemonic::Movsxd => extend(cpu, Width::sign_extend),
        Mnemonic::Movbe => {
            if !cpu.cpu.features().movbe {
                return Err(Reason::MissingFeature.into());
            }
            let width = operand_width(cpu.insn, 0)?;
            let value = cpu.operand(1, width)?;
            cpu.set_operand(0, width, swap_bytes(width, value))
        }
        Mnemonic::Bswap => {
            let width = operand_width(cpu.insn, 0)?;
            let value = cpu.operand(0, width)?;
            cpu.set_operand(0, width, swap_bytes(width, value))
        }
        Mnemonic::Lea => {
            let width = operand_width(cpu.insn, 0)?;
            let offset = cpu.memory_offset(cpu.gpr(Gpr::Rsp), 0)?;
            cpu.set_operand(0, width, offset)
        }
        Mnemonic::Xchg => {
            let width = operand_width(cpu.insn, 0)?;
            let first = cpu.operand_to_write(0, width)?;
            let second = cpu.operand_to_write(1, width)?;
            cpu.set_operand(0, width, second)?;
            cpu.set_operand(1, width, first)
        }
        Mnemonic::Cbw => widen_accumulator(cpu, Width::B1, Width::B2),
        Mnemonic::Cwde => widen_accumulator(cpu, Width::B2, Width::B4),
        Mnemonic::Cdqe => widen_accumulator(cpu, Width::B4, Width::B8),
        Mnemonic::Cwd => sign_into_rdx(cpu, Width::B2),
        Mnemonic::Cdq => sign_into_rdx(cpu, Width::B4),
        Mnemonic::Cqo => sign_into_rdx(cpu, Width::B8),
        _ => Err(Reason::Unmodelled.into()),
    }
}

/// `setcc` and `cmovcc`.
fn conditional<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    condition: ConditionCode,
) -> Result<(), Stop> {
    let holds = flags::holds(condition, cpu.flags.before());
    let width = operand_width(cpu.insn, 0)?;
    if cpu.insn.op_count() == 1 {
        return cpu.set_operand(0, width, u64::from(holds));
    }
    // The source is read, and a 32-bit destination written, whether the condition holds or not.
    let moved = cpu.operand(1, width)?;
    let value = if holds { moved } else { cpu.operand(0, width)? };
    cpu.set_operand(0, width, value)
}

fn extend<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    extended: impl Fn(Width, u64) -> u64,
) -> Result<(), Stop> {
    let (to, from) = (operand_width(cpu.insn, 0)?, operand_width(cpu.insn, 1)?);
    let value = cpu.operand(1, from)?;
    cpu.set_operand(0, to, extended(from, value))
}

fn swap_bytes(width: Width, value: u64) -> u64 {
    value.swap_bytes() >> (64 - width.bits())
}

fn widen_accumulator<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    from: Width,
    to: Width,
) -> Result<(), Stop> {
    let value = from.sign_extend(cpu.gpr(Gpr::Rax));
    cpu.set_gpr_low(Gpr::Rax, to, value);
    Ok(())
}

fn sign_into_rdx<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    let negative = cpu.gpr(Gpr::Rax) & width.sign() != 0;
    cpu.set_gpr_low(Gpr::Rdx, width, flags::when(negative, u64::MAX));
    Ok(())
}
