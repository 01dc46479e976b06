//! Adds a value to an aggregate's counters, with one atomic operation for each counter.

use address::Gva;
use iced_x86::code_asm::{rax, rcx, rdx};
use iced_x86::{Code as Opcode, IcedError, Instruction, MemoryOperand, Register};
use manifest::program::{Aggregate, Linear};

use super::{Unwritten, Writer, at};

/// The better of two values, for [`keep`](Writer::keep).
#[derive(Clone, Copy)]
enum Keep {
    Least,
    Greatest,
}

impl Writer<'_> {
    /// Adds the operand's value to the counters at `words`: the number of values, and behind it the aggregated values.
    pub(super) fn aggregate(&mut self, aggregate: &Aggregate, words: Gva) -> Result<(), Unwritten> {
        self.load(aggregate.of())?;
        let first = words.wrapping_add(8);
        match aggregate {
            Aggregate::Sum(_) => self.add(first)?,
            Aggregate::Min(_) => self.keep(first, Keep::Least)?,
            Aggregate::Max(_) => self.keep(first, Keep::Greatest)?,
            Aggregate::Hist(_) => {
                self.power_of_two()?;
                self.add_one_of(first)?;
            }
            Aggregate::Lhist { linear, .. } => {
                self.range(linear)?;
                self.add_one_of(first)?;
            }
        }
        self.add_one(words)?;
        Ok(())
    }

    fn add(&mut self, word: Gva) -> Result<(), IcedError> {
        let add = Instruction::with2(Opcode::Add_rm64_r64, at(word), Register::RAX)?;
        self.take_in(add)
    }

    /// Writes `change` with a lock prefix.
    fn take_in(&mut self, mut change: Instruction) -> Result<(), IcedError> {
        change.set_has_lock_prefix(true);
        self.asm.add_instruction(change)
    }

    /// Stores RAX in `word` if RAX is better than the value there. The exchange repeats if another processor changes the value meanwhile.
    fn keep(&mut self, word: Gva, which: Keep) -> Result<(), IcedError> {
        let mut again = self.asm.create_label();
        let mut kept = self.asm.create_label();
        self.asm.mov(rdx, rax)?;
        self.with_word(Opcode::Mov_r64_rm64, Register::RAX, word)?;
        self.asm.set_label(&mut again)?;
        self.asm.cmp(rdx, rax)?;
        match which {
            Keep::Least => self.asm.jge(kept)?,
            Keep::Greatest => self.asm.jle(kept)?,
        }
        let exchange = Instruction::with2(Opcode::Cmpxchg_rm64_r64, at(word), Register::RDX)?;
        self.take_in(exchange)?;
        self.asm.jne(again)?;
        self.asm.set_label(&mut kept)?;
        self.asm.zero_bytes()
    }

    /// Sets RAX to the number of its significant bits: 0 for 0.
    fn power_of_two(&mut self) -> Result<(), IcedError> {
        self.asm.mov(rcx, -1i64)?;
        self.asm.bsr(rax, rax)?;
        self.asm.cmove(rax, rcx)?;
        self.asm.inc(rax)
    }

    /// Sets RAX to the number of its bucket.
    fn range(&mut self, linear: &Linear) -> Result<(), IcedError> {
        let mut below = self.asm.create_label();
        let mut above = self.asm.create_label();
        let mut found = self.asm.create_label();
        let ranges = linear.ranges() as u64;
        let asm = &mut self.asm;
        asm.mov(rcx, linear.min())?;
        asm.cmp(rax, rcx)?;
        asm.jl(below)?;
        asm.sub(rax, rcx)?;
        asm.mov(rcx, linear.step().wrapping_mul(ranges))?;
        asm.cmp(rax, rcx)?;
        asm.jae(above)?;
        asm.xor(rdx, rdx)?;
        asm.mov(rcx, linear.step())?;
        asm.div(rcx)?;
        asm.inc(rax)?;
        asm.jmp(found)?;
        asm.set_label(&mut above)?;
        asm.mov(rax, ranges + 1)?;
        asm.jmp(found)?;
        asm.set_label(&mut below)?;
        asm.mov(rax, 0u64)?;
        asm.set_label(&mut found)?;
        asm.zero_bytes()
    }

    /// Adds one to the counter with number RAX, from `first` on.
    fn add_one_of(&mut self, first: Gva) -> Result<(), IcedError> {
        self.with_word(Opcode::Lea_r64_m, Register::RCX, first)?;
        let word = MemoryOperand::with_base_index_scale(Register::RCX, Register::RAX, 8);
        let add = Instruction::with1(Opcode::Inc_rm64, word)?;
        self.take_in(add)
    }
}
