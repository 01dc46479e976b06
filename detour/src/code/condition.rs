//! Loads a value, and compares it: the code uses RAX and RCX.

use iced_x86::code_asm::{
    AsmRegister64, CodeLabel, ptr, r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi,
    rsi, rsp,
};
use iced_x86::{Code as Opcode, IcedError, Instruction, Register as Held};
use manifest::program::{Comparison, Condition, Filter, Operand, Register};

use super::{
    SAVED_BYTES, SAVED_FLAGS, SAVED_RAX, SAVED_RCX, SAVED_RDX, Unwritten, Writer, from_gs,
};
use crate::processor::{NotKept, Processor};

/// The place of a guest register.
enum Place {
    Held(AsmRegister64),
    Saved(i32),
    /// The guest's stack pointer: this many bytes above the present stack pointer.
    Above(i32),
}

const fn place(register: Register) -> Place {
    match register {
        Register::Rax => Place::Saved(SAVED_RAX),
        Register::Rcx => Place::Saved(SAVED_RCX),
        Register::Rdx => Place::Saved(SAVED_RDX),
        Register::Rflags => Place::Saved(SAVED_FLAGS),
        Register::Rsp => Place::Above(SAVED_BYTES),
        Register::Rbx => Place::Held(rbx),
        Register::Rsi => Place::Held(rsi),
        Register::Rdi => Place::Held(rdi),
        Register::Rbp => Place::Held(rbp),
        Register::R8 => Place::Held(r8),
        Register::R9 => Place::Held(r9),
        Register::R10 => Place::Held(r10),
        Register::R11 => Place::Held(r11),
        Register::R12 => Place::Held(r12),
        Register::R13 => Place::Held(r13),
        Register::R14 => Place::Held(r14),
        Register::R15 => Place::Held(r15),
    }
}

impl Writer<'_> {
    /// Jumps to `otherwise` if a condition does not hold.
    pub(super) fn filter(
        &mut self,
        filter: &Filter,
        otherwise: CodeLabel,
    ) -> Result<(), Unwritten> {
        for condition in filter.conditions() {
            self.condition(condition, otherwise)?;
        }
        Ok(())
    }

    fn condition(&mut self, condition: &Condition, otherwise: CodeLabel) -> Result<(), Unwritten> {
        self.load(condition.operand)?;
        let asm = &mut self.asm;
        if let Some(mask) = condition.mask {
            match immediate(mask) {
                Some(mask) => asm.and(rax, mask)?,
                None => {
                    asm.mov(rcx, mask)?;
                    asm.and(rax, rcx)?;
                }
            }
        }
        match immediate(condition.value) {
            Some(value) => asm.cmp(rax, value)?,
            None => {
                asm.mov(rcx, condition.value)?;
                asm.cmp(rax, rcx)?;
            }
        }
        match condition.comparison {
            Comparison::Eq => asm.jne(otherwise)?,
            Comparison::Ne => asm.je(otherwise)?,
            Comparison::Below => asm.jae(otherwise)?,
            Comparison::BelowOrEqual => asm.ja(otherwise)?,
            Comparison::Above => asm.jbe(otherwise)?,
            Comparison::AboveOrEqual => asm.jb(otherwise)?,
            Comparison::Less => asm.jge(otherwise)?,
            Comparison::LessOrEqual => asm.jg(otherwise)?,
            Comparison::Greater => asm.jle(otherwise)?,
            Comparison::GreaterOrEqual => asm.jl(otherwise)?,
        }
        Ok(())
    }

    /// Loads RAX with the value of `operand`.
    pub(super) fn load(&mut self, operand: Operand) -> Result<(), Unwritten> {
        let Processor { number, task, .. } = self.work.processor;
        match operand {
            Operand::Register(register) => self.load_register(register)?,
            Operand::Argument(argument) => self.load_register(argument.register())?,
            Operand::Cpu => {
                let number = number.ok_or(Unwritten::NotKept(NotKept::Number))?;
                let load = Instruction::with2(Opcode::Mov_r32_rm32, Held::EAX, from_gs(number))?;
                self.asm.add_instruction(load)?;
            }
            Operand::CurrentTask => {
                let task = task.ok_or(Unwritten::NotKept(NotKept::Task))?;
                let load = Instruction::with2(Opcode::Mov_r64_rm64, Held::RAX, from_gs(task))?;
                self.asm.add_instruction(load)?;
            }
        }
        Ok(())
    }

    fn load_register(&mut self, register: Register) -> Result<(), IcedError> {
        match place(register) {
            Place::Held(held) => self.asm.mov(rax, held),
            Place::Saved(at) => self.asm.mov(rax, ptr(rsp + at)),
            Place::Above(by) => self.asm.lea(rax, ptr(rsp + by)),
        }
    }
}

/// The value as an immediate operand of 32 bits, if sign extension restores it.
fn immediate(value: u64) -> Option<i32> {
    i32::try_from(value.cast_signed()).ok()
}
