//! Loads a value, and compares it: the code uses RAX and RCX.

use iced_x86::code_asm::{
    AsmRegister64, CodeLabel, eax, ptr, r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx, rcx,
    rdi, rsi, rsp,
};
use iced_x86::{Code as Opcode, IcedError, Instruction, Register as Held};
use manifest::program::{
    Comparison, Condition, Filter, NameCondition, NameWord, Operand, Register, TaskNumber,
    ValueCondition,
};

use super::{
    SAVED_BYTES, SAVED_FLAGS, SAVED_RAX, SAVED_RCX, SAVED_RDX, Unwritten, Writer, from_gs,
};
use crate::processor::{NotKept, PROCESS_BYTES};

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
        match condition {
            Condition::Value(condition) => self.value_condition(condition, otherwise),
            Condition::Name(condition) => self.name_condition(condition, otherwise),
        }
    }

    /// Compares the name word by word. A kernel writes a new name while other processors may read it, as it does for its own readers.
    fn name_condition(
        &mut self,
        condition: &NameCondition,
        otherwise: CodeLabel,
    ) -> Result<(), Unwritten> {
        let comm = self.work.processor.fields.map(|fields| fields.comm);
        let comm = comm.ok_or(Unwritten::NotKept(NotKept::TaskName))?;
        let mut differs = self.asm.create_label();
        let words: Vec<NameWord> = condition.name.words().collect();
        for word in &words {
            self.load_task()?;
            let asm = &mut self.asm;
            let offset = i32::try_from(word.offset).unwrap_or_default();
            asm.mov(rax, ptr(rax + comm.wrapping_add(offset)))?;
            if word.mask != u64::MAX {
                asm.mov(rcx, word.mask)?;
                asm.and(rax, rcx)?;
            }
            asm.mov(rcx, word.value)?;
            asm.cmp(rax, rcx)?;
            match condition.is_equal {
                true => asm.jne(otherwise)?,
                false => asm.jne(differs)?,
            }
        }
        if !condition.is_equal {
            self.asm.jmp(otherwise)?;
            self.asm.set_label(&mut differs)?;
        }
        Ok(())
    }

    fn value_condition(
        &mut self,
        condition: &ValueCondition,
        otherwise: CodeLabel,
    ) -> Result<(), Unwritten> {
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
        let number = self.work.processor.number;
        match operand {
            Operand::Register(register) => self.load_register(register)?,
            Operand::Argument(argument) => self.load_register(argument.register())?,
            Operand::Cpu => {
                let number = number.ok_or(Unwritten::NotKept(NotKept::Number))?;
                let load = Instruction::with2(Opcode::Mov_r32_rm32, Held::EAX, from_gs(number))?;
                self.asm.add_instruction(load)?;
            }
            Operand::CurrentTask => self.load_task()?,
            Operand::Task(number) => self.load_task_number(number)?,
        }
        Ok(())
    }

    fn load_task(&mut self) -> Result<(), Unwritten> {
        let task = self.work.processor.task;
        let task = task.ok_or(Unwritten::NotKept(NotKept::Task))?;
        let load = Instruction::with2(Opcode::Mov_r64_rm64, Held::RAX, from_gs(task))?;
        Ok(self.asm.add_instruction(load)?)
    }

    /// Loads a number of the task. A kernel has a task on each processor from its first instruction in C on.
    fn load_task_number(&mut self, number: TaskNumber) -> Result<(), Unwritten> {
        let fields = self.work.processor.fields;
        let numbers = fields.map(|fields| fields.numbers);
        let numbers = numbers.ok_or(Unwritten::NotKept(NotKept::TaskNumbers));
        let at = match number {
            TaskNumber::Thread => numbers?,
            TaskNumber::Process => numbers?.wrapping_add(PROCESS_BYTES),
            TaskNumber::User => return self.load_user(),
        };
        self.load_task()?;
        Ok(self.asm.mov(eax, ptr(rax + at))?)
    }

    /// Loads the user of the task. A task has credentials from its first instruction to its last, and only the task itself replaces them.
    fn load_user(&mut self) -> Result<(), Unwritten> {
        let user = self.work.processor.fields.and_then(|fields| fields.user);
        let user = user.ok_or(Unwritten::NotKept(NotKept::TaskUser))?;
        self.load_task()?;
        self.asm.mov(rax, ptr(rax + user.cred))?;
        Ok(self.asm.mov(eax, ptr(rax + user.uid))?)
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
