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
//! A detour that several probes share has one part for each, one behind the other; the last one goes on with the instructions.
//! Each part begins and ends with the registers, the flags and the stack of the guest, so that it does not matter which others
//! there are. A part that exits has an exit of its own, which says whose hit it is; behind it the next part begins.
//!
//! Behind the call of a retpoline, `lfence` and an `int3` behind the jump end speculation.
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
use introspect::insn::{Decoded, is_position_independent};

use super::DetourError;
use super::jumped::Jumped;
use super::ring::CLOSED;
use crate::program::{Aggregate, Filter};

/// What a detour does for one probe, or for the calls that return to its site, before it executes the displaced
/// instructions: a part of the detour.
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
    /// Of each part, if it has one.
    pub(super) exits: Vec<Option<Exit>>,
}

/// Where a part of a detour exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    /// The plant's byte.
    pub(super) at: Gva,
    /// Where the detour goes on: with the next part, or behind the last one with the displaced instructions.
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

/// Assembles a detour that begins at `at` and does this, in order.
///
/// # Errors
///
/// When something that it has to reach is too far away, or the kernel does not say where it is.
pub(super) fn assemble(jumped: &Jumped, parts: &[Work<'_>], at: Gva) -> Result<Code, DetourError> {
    let mut asm = CodeAssembler::new(64).map_err(Unwritten::from)?;
    let mut ends = Vec::new();
    for work in parts {
        let asm = &mut asm;
        ends.push((work, Writer { asm, work }.part()?));
    }
    instructions(&mut asm, jumped).map_err(Unwritten::from)?;
    let mut exits = Vec::new();
    for (work, end) in ends {
        let asm = &mut asm;
        let exit = Writer { asm, work }.exit(end).map_err(Unwritten::from)?;
        exits.push(exit.map(|exit| (exit, end.next)));
    }
    Ok(placed(&mut asm, &exits, at)?)
}

/// Where a part ends.
#[derive(Clone, Copy)]
struct End {
    /// The beginning of the next part, or of the displaced instructions.
    next: CodeLabel,
    /// Where it goes to exit, with its registers on the stack; `None` for one that does not exit.
    leave: Option<CodeLabel>,
}

/// Writes one part.
struct Writer<'w> {
    asm: &'w mut CodeAssembler,
    work: &'w Work<'w>,
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

/// The displaced instructions, and the jump back.
fn instructions(asm: &mut CodeAssembler, jumped: &Jumped) -> Result<(), IcedError> {
    for decoded in jumped.instructions() {
        if is_position_independent(decoded) {
            asm.db(decoded.bytes())?;
        } else {
            // Encoded anew for its place: it goes, or reaches, where it did.
            asm.add_instruction(*decoded.instruction())?;
        }
    }
    let is_call = |decoded: &Decoded| decoded.instruction().code() == Opcode::Call_rel32_64;
    let is_retpoline = jumped.instructions().any(is_call);
    if is_retpoline {
        // The return predictor leads here. The kernel's retpolines end speculation in the same way.
        asm.lfence()?;
    }
    asm.jmp(jumped.next().0)?;
    if is_retpoline {
        asm.int3()?;
    }
    Ok(())
}

/// The code at its address, with its exits: where each is, and where it goes on.
fn placed(
    asm: &mut CodeAssembler,
    exits: &[Option<(CodeLabel, CodeLabel)>],
    at: Gva,
) -> Result<Code, Unwritten> {
    let wanted = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let assembled = asm.assemble_options(at.0, wanted)?;
    let offsets = &assembled.inner.new_instruction_offsets;
    if offsets.contains(&u32::MAX) {
        // An instruction had to be made anew as several: what it is relative to is too far away.
        return Err(Unwritten::TooFar);
    }
    let ip = |label| assembled.label_ip(label).map(Gva);
    let mut placed = Vec::new();
    for exit in exits {
        placed.push(match exit {
            Some((at, on)) => Some(Exit {
                at: ip(at)?,
                on: ip(on)?,
            }),
            None => None,
        });
    }
    Ok(Code {
        exits: placed,
        bytes: assembled.inner.code_buffer,
    })
}

impl Writer<'_> {
    fn part(&mut self) -> Result<End, Unwritten> {
        let leave = match (self.work.filter, self.work.does) {
            (None, Does::Count(cell)) => {
                self.count_only(cell)?;
                None
            }
            _ => self.program()?,
        };
        // The next instruction that is written.
        let mut next = self.asm.create_label();
        self.asm.set_label(&mut next)?;
        Ok(End { next, leave })
    }

    /// With no register, and interrupts as they are.
    fn count_only(&mut self, cell: Gva) -> Result<(), IcedError> {
        self.asm.pushfq()?;
        self.add_one(cell)?;
        self.asm.popfq()
    }

    /// The exit of a part that has ended so, if it has one.
    fn exit(&mut self, end: End) -> Result<Option<CodeLabel>, IcedError> {
        let Some(mut leave) = end.leave else {
            return Ok(None);
        };
        let mut exit = self.asm.create_label();
        self.asm.set_label(&mut leave)?;
        self.restore()?;
        self.asm.set_label(&mut exit)?;
        self.asm.db(&[self.work.plant])?;
        // The VMM sets RIP. Where nobody is there to do it, the detour goes on.
        self.asm.jmp(end.next)?;
        Ok(Some(exit))
    }

    /// Returns where it goes to exit, if it does.
    fn program(&mut self) -> Result<Option<CodeLabel>, Unwritten> {
        let mut done = self.asm.create_label();
        let leave = self.asm.create_label();
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
        Ok(exits.then_some(leave))
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
}
