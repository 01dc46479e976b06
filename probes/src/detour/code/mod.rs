//! The code of detours.
//!
//! ```text
//!  counts                          records
//!  ┌─────────────────────────┐     ┌──────────────────────────────────────┐
//!  │ pushfq                  │     │ pushfq; cli; push rax, rcx, rdx      │
//!  │ lock inc qword [cell]   │     │ room in the ring? ── no ───────────┐ │
//!  │ popfq                   │     │ take a slot, fill it               │ │
//!  │ the instructions        │     │ pop rdx, rcx, rax; popfq           │ │
//!  │ jmp next                │     │ the instructions  ◀──────────┐     │ │
//!  └─────────────────────────┘     │ jmp next                     │     │ │
//!                                  │ pop rdx, rcx, rax; popfq  ◀──┼─────┘ │
//!                                  │ plant's byte: exit ── VMM ───┘       │
//!                                  └──────────────────────────────────────┘
//! ```
//!
//! What is pushed lies where the kernel's own interrupts push: the kernel is built without a red zone. While a slot is
//! being filled interrupts are off, so that the task that has taken it never sleeps before it is filled.

mod aggregate;
mod condition;
mod record;
#[cfg(test)]
mod tests;

use iced_x86::code_asm::{AsmRegister64, CodeAssembler, CodeLabel, rax, rcx, rdx};
use iced_x86::{
    BlockEncoderOptions, Code as Opcode, IcedError, Instruction, MemoryOperand, Register,
};
use introspect::Gva;
use introspect::insn::is_position_independent;

use super::DetourError;
use super::jumped::Jumped;
use super::ring::CLOSED;
use crate::program::{Aggregate, Filter};

/// What a detour does before it executes what was jumped over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work<'a> {
    /// Only where this holds.
    pub(super) filter: Option<&'a Filter>,
    pub(super) does: Does<'a>,
    pub(super) processor: Processor,
    /// What leaves the guest.
    pub(super) plant: u8,
}

/// What it does where its filter holds. Addresses are as the guest's kernel sees them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Does<'a> {
    /// Adds one to the word at this address.
    Count(Gva),
    /// Adds a value to the words at this address.
    Aggregate(&'a Aggregate, Gva),
    /// Leaves a record in the ring at `ring`, which says that it is of `who`; not 0.
    Record {
        ring: Gva,
        who: u32,
        of: Of,
        /// When the ring is full, one is added to the word here; without, it leaves the guest.
        dropped: Option<Gva>,
    },
    /// Leaves the guest.
    Exit,
}

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// That an instruction is about to be executed.
    Hit,
    /// That a function has been called, where it is known who is told of its return; else it leaves the guest.
    Call,
    /// That a function is entered to which a call may have returned: with what is on top of the stack.
    Entry,
}

/// What the kernel keeps for each processor, counted from `gs`; `None` where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Processor {
    /// Its number, 32 bits.
    pub(crate) number: Option<i64>,
    /// The address of the task that it runs.
    pub(crate) task: Option<i64>,
}

/// A detour, assembled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) bytes: Vec<u8>,
    pub(super) exit: Option<Exit>,
}

/// Where a detour leaves the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    /// The plant's byte.
    pub(super) at: Gva,
    /// Where the detour goes on.
    pub(super) on: Gva,
}

/// Beside the flags, the first one first.
const SAVED_REGISTERS: [AsmRegister64; 3] = [rax, rcx, rdx];
/// Where they are then, from the stack pointer.
const SAVED_RDX: i32 = 0;
const SAVED_RCX: i32 = 8;
const SAVED_RAX: i32 = 16;
const SAVED_FLAGS: i32 = 24;
/// What the stack pointer was, from what it is.
const SAVED_BYTES: i32 = 32;

/// Why a detour cannot be assembled.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// The kernel does not say where this is.
    NotKept(NotKept),
    /// Everything else about the instructions is known when this is compiled.
    TooFar,
}

/// What the kernel may keep for each processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotKept {
    /// See [`Processor::number`].
    #[error("the kernel does not say where it keeps the number of the processor")]
    Number,
    /// See [`Processor::task`].
    #[error("the kernel does not say where it keeps the task that a processor runs")]
    Task,
}

impl From<IcedError> for Unwritten {
    fn from(_: IcedError) -> Self {
        Self::TooFar
    }
}

impl From<Unwritten> for DetourError {
    fn from(unwritten: Unwritten) -> Self {
        match unwritten {
            Unwritten::NotKept(what) => Self::NotKept(what),
            Unwritten::TooFar => Self::TooFar,
        }
    }
}

/// Assembles a detour that begins at `at`.
///
/// # Errors
///
/// When something that it has to reach is too far away, or the kernel does not say where it is.
pub(super) fn assemble(jumped: &Jumped, work: &Work<'_>, at: Gva) -> Result<Code, DetourError> {
    let mut writer = Writer::new(jumped, work).map_err(Unwritten::from)?;
    match (work.filter, work.does) {
        (None, Does::Count(cell)) => writer.count_only(cell).map_err(Unwritten::from)?,
        _ => writer.program()?,
    }
    Ok(writer.finish(at)?)
}

struct Writer<'w> {
    asm: CodeAssembler,
    jumped: &'w Jumped,
    work: &'w Work<'w>,
    instructions: CodeLabel,
    /// Where it exits, if it does.
    exit: Option<CodeLabel>,
}

/// What is at an address, for an instruction of any place.
fn at(address: Gva) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RIP, address.0.cast_signed())
}

/// What is there for each processor.
const fn from_gs(distance: i64) -> MemoryOperand {
    let none = Register::None;
    MemoryOperand::new(none, none, 1, distance, 8, false, Register::GS)
}

/// An offset or a size, which is far below any limit.
fn small(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

impl<'w> Writer<'w> {
    fn new(jumped: &'w Jumped, work: &'w Work<'w>) -> Result<Self, IcedError> {
        let mut asm = CodeAssembler::new(64)?;
        Ok(Self {
            instructions: asm.create_label(),
            asm,
            jumped,
            work,
            exit: None,
        })
    }

    /// With no register, and interrupts as they are.
    fn count_only(&mut self, cell: Gva) -> Result<(), IcedError> {
        self.asm.pushfq()?;
        self.add_one(cell)?;
        self.asm.popfq()?;
        self.instructions()
    }

    fn program(&mut self) -> Result<(), Unwritten> {
        let mut done = self.asm.create_label();
        let mut leave = self.asm.create_label();
        self.save()?;
        if let Some(filter) = self.work.filter {
            self.filter(filter, done)?;
        }
        let exits = match self.work.does {
            Does::Count(cell) => {
                self.add_one(cell)?;
                false
            }
            Does::Aggregate(aggregate, words) => {
                self.aggregate(aggregate, words)?;
                false
            }
            Does::Record {
                ring,
                who,
                of,
                dropped,
            } => {
                if of == Of::Call {
                    self.known_return(ring, leave)?;
                }
                let full = dropped.map(|_| self.asm.create_label());
                self.record(ring, who, of, full.unwrap_or(leave))?;
                if let (Some(mut full), Some(dropped)) = (full, dropped) {
                    self.asm.jmp(done)?;
                    self.asm.set_label(&mut full)?;
                    // Nobody opens the ring but who leaves the guest.
                    let closed = at(ring.wrapping_add(CLOSED));
                    let compare = Instruction::with2(Opcode::Cmp_rm64_imm8, closed, 0)?;
                    self.asm.add_instruction(compare)?;
                    self.asm.jne(leave)?;
                    self.add_one(dropped)?;
                }
                true
            }
            Does::Exit => {
                self.asm.jmp(leave)?;
                true
            }
        };
        self.asm.set_label(&mut done)?;
        self.restore()?;
        self.instructions()?;
        if exits {
            let mut exit = self.asm.create_label();
            self.asm.set_label(&mut leave)?;
            self.restore()?;
            self.asm.set_label(&mut exit)?;
            self.asm.db(&[self.work.plant])?;
            // The VMM sets RIP. Where nobody is there to do it, the detour goes on.
            self.asm.jmp(self.instructions)?;
            self.exit = Some(exit);
        }
        Ok(())
    }

    /// Flags and registers go to the stack, and interrupts off.
    fn save(&mut self) -> Result<(), IcedError> {
        self.asm.pushfq()?;
        self.asm.cli()?;
        for register in SAVED_REGISTERS {
            self.asm.push(register)?;
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), IcedError> {
        for register in SAVED_REGISTERS.into_iter().rev() {
            self.asm.pop(register)?;
        }
        self.asm.popfq()
    }

    /// Adds one to the word at `at`.
    fn add_one(&mut self, word: Gva) -> Result<(), IcedError> {
        let mut add = Instruction::with1(Opcode::Inc_rm64, at(word))?;
        add.set_has_lock_prefix(true);
        self.asm.add_instruction(add)
    }

    /// `register` with what is at `address`.
    fn with_word(
        &mut self,
        opcode: Opcode,
        register: Register,
        address: Gva,
    ) -> Result<(), IcedError> {
        let with = Instruction::with2(opcode, register, at(address))?;
        self.asm.add_instruction(with)
    }

    /// What was jumped over, and the jump back.
    fn instructions(&mut self) -> Result<(), IcedError> {
        self.asm.set_label(&mut self.instructions)?;
        for decoded in self.jumped.instructions() {
            if is_position_independent(decoded) {
                self.asm.db(decoded.bytes())?;
            } else {
                // Encoded anew for its place: it goes, or reaches, where it did.
                self.asm.add_instruction(*decoded.instruction())?;
            }
        }
        self.asm.jmp(self.jumped.next().0)
    }

    fn finish(mut self, at: Gva) -> Result<Code, Unwritten> {
        let wanted = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let assembled = self.asm.assemble_options(at.0, wanted)?;
        let on = Gva(assembled.label_ip(&self.instructions)?);
        let exit = self.exit.map(|exit| assembled.label_ip(&exit));
        let exit = exit.transpose()?.map(|at| Exit { at: Gva(at), on });
        let offsets = &assembled.inner.new_instruction_offsets;
        if offsets.contains(&u32::MAX) {
            // An instruction had to be made anew as several: what it is relative to is too far away.
            return Err(Unwritten::TooFar);
        }
        Ok(Code {
            bytes: assembled.inner.code_buffer,
            exit,
        })
    }
}
