//! Instructions on the flags register.

use iced_x86::Mnemonic;

use super::effects::{Effects, Stop};
use super::flags::{
    ADJUST, ALIGNMENT, CARRY, DIRECTION, FIXED, IDENTIFICATION, INTERRUPT, IO_LEVEL, NESTED_TASK,
    PARITY, RESUME, SIGN, STATUS, TRAP, VIRTUAL_8086, ZERO, io_level,
};
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr};
use crate::insn::reason::Reason;

/// The flags moved by `lahf` and `sahf`.
const IN_AH: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    match cpu.insn.mnemonic() {
        Mnemonic::Clc => cpu.flags.set(CARRY, 0),
        Mnemonic::Stc => cpu.flags.set(CARRY, CARRY),
        Mnemonic::Cmc => cpu.flags.set(CARRY, !cpu.flags.before()),
        Mnemonic::Cld => cpu.flags.set(DIRECTION, 0),
        Mnemonic::Std => cpu.flags.set(DIRECTION, DIRECTION),
        Mnemonic::Lahf => cpu.set_gpr_second_byte(Gpr::Rax, cpu.flags.before() & IN_AH | FIXED),
        Mnemonic::Sahf => cpu.flags.set(IN_AH, cpu.gpr(Gpr::Rax) >> 8),
        Mnemonic::Cli => {
            if u64::from(cpu.cpu.privilege_level()?) > io_level(cpu.flags.before()) {
                return Err(Reason::PrivilegeLevel.into());
            }
            cpu.flags.set(INTERRUPT, 0);
        }
        Mnemonic::Clac => {
            check_access_control(cpu)?;
            cpu.flags.set(ALIGNMENT, 0);
        }
        Mnemonic::Stac => {
            check_access_control(cpu)?;
            cpu.flags.set(ALIGNMENT, ALIGNMENT);
        }
        Mnemonic::Pushf => push(cpu, Width::B2)?,
        Mnemonic::Pushfq => push(cpu, Width::B8)?,
        Mnemonic::Popf => pop(cpu, Width::B2)?,
        Mnemonic::Popfq => pop(cpu, Width::B8)?,
        _ => return Err(Reason::Unmodelled.into()),
    }
    Ok(())
}

fn check_access_control<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    if !cpu.cpu.features().smap {
        return Err(Reason::MissingFeature.into());
    }
    if cpu.cpu.privilege_level()? != 0 {
        return Err(Reason::PrivilegeLevel.into());
    }
    Ok(())
}

fn push<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    let image = cpu.flags.before() & !(RESUME | VIRTUAL_8086) | FIXED;
    cpu.push(width, width.truncate(image))
}

fn pop<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, width: Width) -> Result<(), Stop> {
    let image = cpu.pop(width)?;
    if image & TRAP != 0 {
        // The guest begins to single-step: the guest's first trap comes after the next instruction.
        return Err(Reason::GuestTrapFlag.into());
    }
    let level = u64::from(cpu.cpu.privilege_level()?);
    // The instruction silently leaves flags without write permission unchanged.
    let mut which = STATUS | DIRECTION | NESTED_TASK | ALIGNMENT | IDENTIFICATION;
    if level == 0 {
        which |= IO_LEVEL;
    }
    if level <= io_level(cpu.flags.before()) {
        which |= INTERRUPT;
    }
    cpu.flags.set(width.truncate(which), image);
    Ok(())
}
