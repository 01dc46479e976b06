//! The stack.
//!
//! The order in which the stack pointer moves and operands are read is the hardware's: `push rsp`
//! pushes the old value, `pop [rsp]` addresses with the new value, `pop rsp` keeps the popped
//! value.

use iced_x86::{Code, Mnemonic};

use super::effects::{Effects, Stop};
use super::operand::{is_memory, operand_width};
use super::width::Width;
use crate::insn::cpu::{Cpu, Gpr};
use crate::insn::reason::Reason;

pub(super) fn run<C: Cpu + ?Sized>(cpu: &mut Effects<'_, C>) -> Result<(), Stop> {
    match cpu.insn.mnemonic() {
        Mnemonic::Push => {
            let bytes = cpu.insn.stack_pointer_increment().unsigned_abs() as usize;
            let width = Width::from_bytes(bytes).ok_or(Reason::Unmodelled)?;
            let value = cpu.operand(0, width)?;
            cpu.push(width, value)
        }
        Mnemonic::Pop => {
            let width = operand_width(cpu.insn, 0)?;
            let value = cpu.pop(width)?;
            if is_memory(cpu.insn, 0) {
                let rsp = cpu.gpr(Gpr::Rsp).wrapping_add(width.bytes() as u64);
                let offset = cpu.memory_offset(rsp, 0)?;
                let at = cpu.linear(offset)?;
                cpu.write(at, width, value)
            } else {
                cpu.set_operand(0, width, value)
            }
        }
        Mnemonic::Leave => {
            let width = match cpu.insn.code() {
                Code::Leaveq => Width::B8,
                Code::Leavew => Width::B2,
                _ => return Err(Reason::Unmodelled.into()),
            };
            let frame = cpu.gpr(Gpr::Rbp);
            let caller = cpu.read(frame, width)?;
            cpu.registers
                .set(Gpr::Rsp, frame.wrapping_add(width.bytes() as u64));
            cpu.set_gpr_low(Gpr::Rbp, width, caller);
            Ok(())
        }
        _ => Err(Reason::Unmodelled.into()),
    }
}

impl<C: Cpu + ?Sized> Effects<'_, C> {
    /// Pushes a value.
    pub(super) fn push(&mut self, width: Width, value: u64) -> Result<(), Stop> {
        let top = self.gpr(Gpr::Rsp).wrapping_sub(width.bytes() as u64);
        self.write(top, width, value)?;
        self.registers.set(Gpr::Rsp, top);
        Ok(())
    }

    /// Pops a value.
    pub(super) fn pop(&mut self, width: Width) -> Result<u64, Stop> {
        let top = self.gpr(Gpr::Rsp);
        let value = self.read(top, width)?;
        self.registers
            .set(Gpr::Rsp, top.wrapping_add(width.bytes() as u64));
        Ok(value)
    }
}
