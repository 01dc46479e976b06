//! Operands: where they are, reading and writing them.

use iced_x86::{Instruction, OpKind, Register};

use super::effects::{Effects, Stop};
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr, Segment};
use crate::insn::reason::Reason;

/// The general-purpose register holding `register`, in whole or in part.
fn gpr_of(register: Register) -> Result<Gpr, Stop> {
    if !register.is_gpr() {
        return Err(Reason::Unmodelled.into());
    }
    Ok(Gpr::ALL[register.full_register().number() & 15])
}

fn is_second_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

/// The size of an operand.
pub(super) fn operand_width(insn: &Instruction, operand: u32) -> Result<Width, Stop> {
    let bytes = match insn.op_kind(operand) {
        OpKind::Register => insn.op_register(operand).size(),
        OpKind::Memory => insn.memory_size().size(),
        _ => 0,
    };
    Width::from_bytes(bytes).ok_or(Stop::Unsupported(Reason::Unmodelled))
}

pub(super) fn is_memory(insn: &Instruction, operand: u32) -> bool {
    insn.op_kind(operand) == OpKind::Memory
}

/// The width of the memory operand's address: 32 bits with an address-size prefix.
fn address_width(insn: &Instruction) -> Width {
    let is_short = |register: Register| register.size() == 4;
    if is_short(insn.memory_base())
        || is_short(insn.memory_index())
        || (insn.memory_base() == Register::None
            && insn.memory_index() == Register::None
            && insn.memory_displ_size() == 4)
    {
        Width::B4
    } else {
        Width::B8
    }
}

fn register_width(register: Register) -> Result<Width, Stop> {
    Width::from_bytes(register.size()).ok_or(Stop::Unsupported(Reason::Unmodelled))
}

impl<C: Cpu + ?Sized> Effects<'_, C> {
    /// Reads an operand as a value of `width`: registers and memory have this width, immediates are
    /// extended.
    pub(super) fn operand(&mut self, operand: u32, width: Width) -> Result<u64, Stop> {
        match self.insn.op_kind(operand) {
            OpKind::Register => self.register(self.insn.op_register(operand)),
            OpKind::Memory => {
                let at = self.memory_address()?;
                self.read(at, width)
            }
            _ => match self.insn.try_immediate(operand) {
                Ok(value) => Ok(width.truncate(value)),
                Err(_) => Err(Reason::Unmodelled.into()),
            },
        }
    }

    /// Reads an operand before a write, like [`Effects::operand`].
    pub(super) fn operand_to_write(&mut self, operand: u32, width: Width) -> Result<u64, Stop> {
        if !is_memory(self.insn, operand) {
            return self.operand(operand, width);
        }
        let at = self.memory_address()?;
        self.read_to_write(at, width)
    }

    /// Will write an operand.
    pub(super) fn set_operand(
        &mut self,
        operand: u32,
        width: Width,
        value: u64,
    ) -> Result<(), Stop> {
        match self.insn.op_kind(operand) {
            OpKind::Register => self.set_register(self.insn.op_register(operand), value),
            OpKind::Memory => {
                let at = self.memory_address()?;
                self.write(at, width, width.truncate(value))
            }
            _ => Err(Reason::Unmodelled.into()),
        }
    }

    /// All 64 bits of a register operand.
    pub(super) fn full_register(&self, operand: u32) -> Result<u64, Stop> {
        Ok(self.gpr(gpr_of(self.insn.op_register(operand))?))
    }

    /// A general-purpose register of any size.
    pub(super) fn register(&self, register: Register) -> Result<u64, Stop> {
        let full = self.gpr(gpr_of(register)?);
        if is_second_byte(register) {
            return Ok(full >> 8 & 0xff);
        }
        let width = register_width(register)?;
        Ok(width.truncate(full))
    }

    /// Will write a general-purpose register of any size.
    pub(super) fn set_register(&mut self, register: Register, value: u64) -> Result<(), Stop> {
        let full = gpr_of(register)?;
        if is_second_byte(register) {
            self.set_gpr_second_byte(full, value);
        } else {
            self.set_gpr_low(full, register_width(register)?, value);
        }
        Ok(())
    }

    /// The memory operand's address, the segment's base included.
    pub(super) fn memory_address(&mut self) -> Result<u64, Stop> {
        let offset = self.memory_offset(self.gpr(Gpr::Rsp), 0)?;
        self.linear(offset)
    }

    /// The memory operand's offset in the segment, the result of `lea`.
    ///
    /// `rsp` is the stack pointer to use, and `extra` is added before the result is cut to the
    /// address size.
    pub(super) fn memory_offset(&self, rsp: u64, extra: u64) -> Result<u64, Stop> {
        let insn = self.insn;
        if insn.is_ip_rel_memory_operand() {
            return Ok(
                address_width(insn).truncate(insn.ip_rel_memory_address().wrapping_add(extra))
            );
        }
        let value = |register: Register| match register {
            Register::None => Ok(0),
            Register::RSP => Ok(rsp),
            Register::ESP => Ok(Width::B4.truncate(rsp)),
            register if matches!(register.size(), 4 | 8) => self.register(register),
            _ => Err(Stop::Unsupported(Reason::Unmodelled)),
        };
        let base = value(insn.memory_base())?;
        let index = value(insn.memory_index())?;
        let offset = base
            .wrapping_add(index.wrapping_mul(u64::from(insn.memory_index_scale())))
            .wrapping_add(insn.memory_displacement64())
            .wrapping_add(extra);
        Ok(address_width(insn).truncate(offset))
    }

    /// The linear address of an offset in the instruction's segment.
    pub(super) fn linear(&mut self, offset: u64) -> Result<u64, Stop> {
        let base = match self.insn.memory_segment() {
            Register::FS => self.cpu.segment_base(Segment::Fs)?,
            Register::GS => self.cpu.segment_base(Segment::Gs)?,
            // The others start at zero in 64-bit mode.
            _ => 0,
        };
        Ok(base.wrapping_add(offset))
    }
}
