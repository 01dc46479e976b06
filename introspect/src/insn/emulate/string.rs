//! Single elements of strings: `movs`, `stos`, `lods`, `scas`, `cmps` without a repeat prefix.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::effects::{Effects, Stop};
use super::flags::{self, DIRECTION, STATUS};
use super::width::Width;
use crate::insn::class::Reason;
use crate::insn::cpu::{Cpu, Gpr};

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    use Mnemonic as M;
    let width = Width::from_bytes(cpu.insn.memory_size().size()).ok_or(Reason::Unmodelled)?;
    let address = address_width(cpu.insn);
    match cpu.insn.mnemonic() {
        M::Movsb | M::Movsw | M::Movsd | M::Movsq => {
            let value = source(cpu, width, address)?;
            cpu.write(address.truncate(cpu.gpr(Gpr::Rdi)), width, value)?;
            advance(cpu, Gpr::Rsi, width, address);
            advance(cpu, Gpr::Rdi, width, address);
        }
        M::Stosb | M::Stosw | M::Stosd | M::Stosq => {
            let value = width.truncate(cpu.gpr(Gpr::Rax));
            cpu.write(address.truncate(cpu.gpr(Gpr::Rdi)), width, value)?;
            advance(cpu, Gpr::Rdi, width, address);
        }
        M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => {
            let value = source(cpu, width, address)?;
            cpu.set_gpr_low(Gpr::Rax, width, value);
            advance(cpu, Gpr::Rsi, width, address);
        }
        M::Scasb | M::Scasw | M::Scasd | M::Scasq => {
            let value = width.truncate(cpu.gpr(Gpr::Rax));
            compare(cpu, width, address, value)?;
        }
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq => {
            let value = source(cpu, width, address)?;
            compare(cpu, width, address, value)?;
            advance(cpu, Gpr::Rsi, width, address);
        }
        _ => return Err(Reason::Unmodelled.into()),
    }
    Ok(())
}

/// The width of RSI and RDI: ESI and EDI with an address-size prefix.
fn address_width(insn: &Instruction) -> Width {
    let short = |operand| {
        matches!(
            insn.op_kind(operand),
            OpKind::MemorySegESI | OpKind::MemoryESEDI
        )
    };
    if short(0) || short(1) {
        Width::B4
    } else {
        Width::B8
    }
}

/// The element at RSI, whose segment can be overridden.
fn source<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    width: Width,
    address: Width,
) -> Result<u64, Stop> {
    let at = cpu.linear(address.truncate(cpu.gpr(Gpr::Rsi)))?;
    cpu.read(at, width)
}

/// Compares `value` with the element at RDI.
fn compare<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    width: Width,
    address: Width,
    value: u64,
) -> Result<(), Stop> {
    let other = cpu.read(address.truncate(cpu.gpr(Gpr::Rdi)), width)?;
    let (_, flags) = flags::sub(width, value, other, false);
    cpu.set_flags(STATUS, flags);
    advance(cpu, Gpr::Rdi, width, address);
    Ok(())
}

fn advance<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, pointer: Gpr, width: Width, address: Width) {
    let by = width.bytes() as u64;
    let old = cpu.gpr(pointer);
    let new = if cpu.flag(DIRECTION) {
        old.wrapping_sub(by)
    } else {
        old.wrapping_add(by)
    };
    cpu.set_gpr_low(pointer, address, new);
}
