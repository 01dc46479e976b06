//! Near branches.
//!
//! Targets are 64 bits wide; a 16-bit branch never reaches this file (the reason is
//! [`Reason::VendorSpecific`]). The commit of the effects finds a non-canonical target.

use iced_x86::{Code, Mnemonic, OpKind};

use super::effects::{Effects, Stop};
use super::flags::{self, ZERO};
use super::operand::operand_width;
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr};
use crate::insn::reason::Reason;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    match cpu.insn.mnemonic() {
        Mnemonic::Jmp => {
            let target = target(cpu)?;
            cpu.jump(target);
        }
        Mnemonic::Call => {
            let target = target(cpu)?;
            cpu.push(Width::B8, cpu.insn.next_ip())?;
            cpu.jump(target);
        }
        Mnemonic::Ret => {
            let target = cpu.pop(Width::B8)?;
            if cpu.insn.op_count() == 1 {
                let arguments = cpu.operand(0, Width::B2)?;
                let behind = cpu.gpr(Gpr::Rsp).wrapping_add(8).wrapping_add(arguments);
                cpu.registers.set(Gpr::Rsp, behind);
            }
            cpu.jump(target);
        }
        Mnemonic::Jrcxz => {
            let taken = cpu.gpr(Gpr::Rcx) == 0;
            return jump_if(cpu, taken);
        }
        Mnemonic::Jecxz => {
            let taken = Width::B4.truncate(cpu.gpr(Gpr::Rcx)) == 0;
            return jump_if(cpu, taken);
        }
        Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne => return count_down(cpu),
        _ if cpu.insn.is_jcc_short_or_near() => {
            let taken = flags::holds(cpu.insn.condition_code(), cpu.flags.before());
            return jump_if(cpu, taken);
        }
        _ => return Err(Reason::Unmodelled.into()),
    }
    Ok(())
}

fn target<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<u64, Stop> {
    match cpu.insn.op0_kind() {
        OpKind::NearBranch64 => Ok(cpu.insn.near_branch64()),
        _ => {
            // From memory, all 64 bits: the operand sets the width, never the prefix.
            if operand_width(cpu.insn, 0)? != Width::B8 {
                return Err(Reason::Unmodelled.into());
            }
            cpu.operand(0, Width::B8)
        }
    }
}

fn jump_if<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, taken: bool) -> Result<(), Stop> {
    if taken {
        let target = target(cpu)?;
        cpu.jump(target);
    }
    Ok(())
}

/// `loop`, `loope` and `loopne`, counting in RCX or, with an address-size prefix, ECX.
fn count_down<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    let counter = match cpu.insn.code() {
        Code::Loop_rel8_64_RCX | Code::Loope_rel8_64_RCX | Code::Loopne_rel8_64_RCX => Width::B8,
        Code::Loop_rel8_64_ECX | Code::Loope_rel8_64_ECX | Code::Loopne_rel8_64_ECX => Width::B4,
        _ => return Err(Reason::Unmodelled.into()),
    };
    let count = counter.truncate(cpu.gpr(Gpr::Rcx).wrapping_sub(1));
    cpu.set_gpr_low(Gpr::Rcx, counter, count);
    let wanted = match cpu.insn.mnemonic() {
        Mnemonic::Loope => cpu.flags.was_set(ZERO),
        Mnemonic::Loopne => !cpu.flags.was_set(ZERO),
        _ => true,
    };
    jump_if(cpu, count != 0 && wanted)
}
