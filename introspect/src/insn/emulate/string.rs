//! Strings: `movs`, `stos`, `lods`, `scas`, `cmps` of one element, and `rep movs` and `rep stos` of
//! no more than 64 KiB upwards. The emulator moves a repeated string at once, so the instruction
//! takes effect entirely or not at all.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::effects::{Effects, Stop};
use super::flags::{self, DIRECTION, STATUS};
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr, MOST_ACCESSED_BYTES};
use crate::insn::reason::Reason;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    use Mnemonic as M;
    let width = Width::from_bytes(cpu.insn.memory_size().size()).ok_or(Reason::Unmodelled)?;
    let address = address_width(cpu.insn);
    if cpu.insn.has_rep_prefix() {
        return repeat(cpu, width, address);
    }
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

/// `rep movs` and `rep stos`.
fn repeat<C: Cpu + ?Sized>(
    cpu: &mut Effects<'_, C>,
    width: Width,
    address: Width,
) -> Result<(), Stop> {
    let count = address.truncate(cpu.gpr(Gpr::Rcx));
    if count == 0 {
        // With 32-bit addresses, the processor might clear the upper halves of the registers even
        // for a count of 0.
        return if address == Width::B8 {
            Ok(())
        } else {
            Err(Reason::UndefinedResult.into())
        };
    }
    let to = address.truncate(cpu.gpr(Gpr::Rdi));
    let from = address.truncate(cpu.gpr(Gpr::Rsi));
    let bytes = count.saturating_mul(width.bytes() as u64);
    let wraps = |start: u64| start > address.mask() - bytes;
    if bytes > MOST_ACCESSED_BYTES as u64 || cpu.flags.was_set(DIRECTION) || wraps(to) {
        return Err(Reason::Repeated.into());
    }
    let count = usize::try_from(count).map_err(|_| Reason::Repeated)?;
    let end = |start: u64| start.wrapping_add(bytes);
    let content = match cpu.insn.mnemonic() {
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsd | Mnemonic::Movsq => {
            let source = cpu.linear(from)?;
            // If the target overlaps the source further up, the first elements moved are moved
            // again.
            if wraps(from) || to.wrapping_sub(source) < bytes {
                return Err(Reason::Repeated.into());
            }
            cpu.registers.set(Gpr::Rsi, end(from));
            cpu.read_string(source, width, count)?
        }
        Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => {
            let value = cpu.gpr(Gpr::Rax).to_le_bytes();
            value[..width.bytes()].repeat(count)
        }
        _ => return Err(Reason::Repeated.into()),
    };
    cpu.write_string(to, width, content)?;
    cpu.registers.set(Gpr::Rdi, end(to));
    cpu.registers.set(Gpr::Rcx, 0);
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

/// The element at RSI, in DS or in the segment of a prefix.
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
    cpu.flags.set(STATUS, flags);
    advance(cpu, Gpr::Rdi, width, address);
    Ok(())
}

fn advance<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>, pointer: Gpr, width: Width, address: Width) {
    let by = width.bytes() as u64;
    let old = cpu.gpr(pointer);
    let new = if cpu.flags.was_set(DIRECTION) {
        old.wrapping_sub(by)
    } else {
        old.wrapping_add(by)
    };
    cpu.set_gpr_low(pointer, address, new);
}
