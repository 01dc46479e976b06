//! Bitwise logic.

use iced_x86::Mnemonic;

use super::effects::{Effects, Stop};
use super::flags::{self, STATUS};
use super::operand::operand_width;
use crate::insn::cpu::Cpu;
use crate::insn::reason::Reason;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let width = operand_width(cpu.insn, 0)?;
    let mnemonic = cpu.insn.mnemonic();
    let old = match mnemonic {
        Mnemonic::Test => cpu.operand(0, width)?,
        _ => cpu.operand_to_write(0, width)?,
    };
    if mnemonic == Mnemonic::Not {
        return cpu.set_operand(0, width, !old);
    }
    let by = cpu.operand(1, width)?;
    let result = match mnemonic {
        Mnemonic::And | Mnemonic::Test => old & by,
        Mnemonic::Or => old | by,
        Mnemonic::Xor => old ^ by,
        _ => return Err(Reason::Unmodelled.into()),
    };
    // CF and OF are cleared. Every processor clears AF too, though the manuals do not say so.
    cpu.flags.set(STATUS, flags::of_result(width, result));
    if mnemonic == Mnemonic::Test {
        Ok(())
    } else {
        cpu.set_operand(0, width, result)
    }
}
