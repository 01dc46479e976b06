//! The machine code of detours.
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
//! A detour shared by several probes has one part for each probe, one behind the other; behind the last part come the displaced
//! instructions. Each part begins and ends with the registers, the flags and the stack of the guest, so parts are independent of each
//! other. Each part that exits has its own exit, whose address identifies the part; the next part begins at the exit's continuation.
//!
//! Behind the call of a retpoline, `lfence` and an `int3` behind the jump end speculation.
//!
//! Pushed values lie where the kernel's own interrupts push: the kernel is built without a red zone. Interrupts are off while a slot is
//! being filled, so the task that has taken the slot never sleeps before the slot is filled.

mod aggregate;
mod condition;
mod record;
#[cfg(test)]
mod tests;

use address::Gva;
use iced_x86::code_asm::{AsmRegister64, CodeAssembler, CodeLabel, rax, rcx, rdx};
use iced_x86::{
    BlockEncoderOptions, Code as Opcode, IcedError, Instruction, MemoryOperand, Register,
};
use introspect::insn::{Decoded, is_position_independent};
use manifest::program::{Aggregate, Filter};

use super::DetourError;
use super::jumped::Jumped;
use super::processor::{NotKept, Processor};
use super::ring::CLOSED;

/// The work of a detour for one probe, or for the calls that return to its site, before the displaced instructions: a part of the detour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work<'a> {
    /// The part handles only hits that the filter accepts.
    pub(super) filter: Option<&'a Filter>,
    pub(super) does: Does<'a>,
    pub(super) processor: Processor,
    /// The byte that exits.
    pub(super) plant: u8,
}

/// The action of a part if the filter accepts the hit. Addresses are addresses of the guest's kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Does<'a> {
    /// Adds one to the counter at the address.
    Count(Gva),
    /// Adds a value to the aggregate's counters at the address.
    Aggregate(&'a Aggregate, Gva),
    /// Writes a record to the ring at `ring`, with the part's number `who`, which is not 0.
    Record {
        ring: Gva,
        part_number: u32,
        of: Of,
        /// The counter to increment if the ring is open and full; without a counter, the part exits.
        dropped: Option<Gva>,
    },
    /// Exits.
    Exit,
}

/// The kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// An instruction is about to be executed.
    Hit,
    /// A function has been called, and its return address is in the ring's table; otherwise the part exits.
    Call,
    /// A function has been entered to which a call may have returned; the record holds the top of the stack.
    Entry,
}

/// An assembled detour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) bytes: Vec<u8>,
    /// The exit of each part, if any.
    pub(super) exits: Vec<Option<Exit>>,
    /// The address of the first displaced instruction.
    pub(super) displaced: Gva,
}

/// The exit of a part of a detour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    /// The address of the plant's byte.
    pub(super) at: Gva,
    /// The address at which the detour continues: the next part, or, behind the last part, the displaced instructions.
    pub(super) on: Gva,
}

/// The saved registers besides the flags, in the order of the pushes.
const SAVED_REGISTERS: [AsmRegister64; 3] = [rax, rcx, rdx];
/// The offsets of the saved values from the stack pointer.
const SAVED_RDX: i32 = 0;
const SAVED_RCX: i32 = 8;
const SAVED_RAX: i32 = 16;
const SAVED_FLAGS: i32 = 24;
/// The distance from the present stack pointer to the guest's.
const SAVED_BYTES: i32 = 32;

/// The reason why a detour cannot be assembled.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// The kernel does not reveal the location of a per-processor variable.
    NotKept(NotKept),
    /// A target is too far away. Assembly has no other error: all other properties of the instructions are known at compile time.
    TooFar,
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

/// Assembles a detour at `at`: the work of `parts`, in order, and the displaced instructions.
///
/// # Errors
///
/// If a target is too far away, or the kernel does not reveal the location of a per-processor variable.
pub(super) fn assemble(jumped: &Jumped, parts: &[Work<'_>], at: Gva) -> Result<Code, DetourError> {
    let mut asm = CodeAssembler::new(64).map_err(Unwritten::from)?;
    let mut ends = Vec::new();
    for work in parts {
        let asm = &mut asm;
        ends.push((work, Writer { asm, work }.part()?));
    }
    // Each part ends with a label on the next instruction, which can have one label only.
    let displaced = match ends.last() {
        Some((_, end)) => end.next,
        None => {
            let mut label = asm.create_label();
            asm.set_label(&mut label).map_err(Unwritten::from)?;
            label
        }
    };
    instructions(&mut asm, jumped).map_err(Unwritten::from)?;
    let mut exits = Vec::new();
    for (work, end) in ends {
        let asm = &mut asm;
        let exit = Writer { asm, work }.exit(end).map_err(Unwritten::from)?;
        exits.push(exit.map(|exit| (exit, end.next)));
    }
    Ok(placed(&mut asm, &exits, displaced, at)?)
}

/// The end of a part.
#[derive(Clone, Copy)]
struct End {
    /// The beginning of the next part, or of the displaced instructions.
    next: CodeLabel,
    /// The jump target for the exit, with the registers on the stack; `None` if the part does not exit.
    leave: Option<CodeLabel>,
}

/// Writes one part.
struct Writer<'w> {
    asm: &'w mut CodeAssembler,
    work: &'w Work<'w>,
}

/// The memory operand for `address`, relative to RIP wherever the instruction lies.
fn at(address: Gva) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RIP, address.0.cast_signed())
}

/// The memory operand for the per-processor variable at `distance` from `gs`.
const fn from_gs(distance: i64) -> MemoryOperand {
    let none = Register::None;
    MemoryOperand::new(none, none, 1, distance, 8, false, Register::GS)
}

/// An offset or a size as an `i32`; all are far below the limit.
fn small(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// The displaced instructions, and the jump back.
fn instructions(asm: &mut CodeAssembler, jumped: &Jumped) -> Result<(), IcedError> {
    for decoded in jumped.instructions() {
        if is_position_independent(decoded) {
            asm.db(decoded.bytes())?;
        } else {
            // Encoded anew for the new address: a branch keeps its target, a RIP-relative operand its address.
            asm.add_instruction(*decoded.instruction())?;
        }
    }
    let is_call = |decoded: &Decoded| decoded.instruction().code() == Opcode::Call_rel32_64;
    let is_retpoline = jumped.instructions().any(is_call);
    if is_retpoline {
        // The return predictor predicts this address. The kernel's retpolines end speculation in the same way.
        asm.lfence()?;
    }
    asm.jmp(jumped.next().0)?;
    if is_retpoline {
        asm.int3()?;
    }
    Ok(())
}

/// Assembles the code for the address `at`, and resolves the addresses of the exits and their continuations.
fn placed(
    asm: &mut CodeAssembler,
    exits: &[Option<(CodeLabel, CodeLabel)>],
    displaced: CodeLabel,
    at: Gva,
) -> Result<Code, Unwritten> {
    let wanted = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let assembled = asm.assemble_options(at.0, wanted)?;
    let offsets = &assembled.inner.new_instruction_offsets;
    if offsets.contains(&u32::MAX) {
        // The encoder replaced an instruction by several, because its target is too far away.
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
        displaced: ip(&displaced)?,
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
        // The label marks the next instruction written.
        let mut next = self.asm.create_label();
        self.asm.set_label(&mut next)?;
        Ok(End { next, leave })
    }

    /// Counts a hit without changing a register or the interrupt flag.
    fn count_only(&mut self, cell: Gva) -> Result<(), IcedError> {
        self.asm.pushfq()?;
        self.add_one(cell)?;
        self.asm.popfq()
    }

    /// Writes the exit of a part that ends with `end`, if the part exits.
    fn exit(&mut self, end: End) -> Result<Option<CodeLabel>, IcedError> {
        let Some(mut leave) = end.leave else {
            return Ok(None);
        };
        let mut exit = self.asm.create_label();
        self.asm.set_label(&mut leave)?;
        self.restore()?;
        self.asm.set_label(&mut exit)?;
        self.asm.db(&[self.work.plant])?;
        // The VMM sets RIP. If the VMM does not, the detour continues at the next part.
        self.asm.jmp(end.next)?;
        Ok(Some(exit))
    }

    /// Writes a part with a filter or an action other than counting. Returns the label of the exit, if the part exits.
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
                part_number,
                of,
                dropped,
            } => {
                if of == Of::Call {
                    self.known_return(ring, leave)?;
                }
                let full = dropped.map(|_| self.asm.create_label());
                self.record(ring, part_number, of, full.unwrap_or(leave))?;
                if let (Some(mut full), Some(dropped)) = (full, dropped) {
                    self.asm.jmp(done)?;
                    self.asm.set_label(&mut full)?;
                    // Only the VMM opens the ring, so the part exits while the ring is closed.
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

    /// Pushes the flags and registers, and disables interrupts.
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

    /// Adds one to the counter at `word`, atomically.
    fn add_one(&mut self, word: Gva) -> Result<(), IcedError> {
        let mut add = Instruction::with1(Opcode::Inc_rm64, at(word))?;
        add.set_has_lock_prefix(true);
        self.asm.add_instruction(add)
    }

    /// Writes an instruction with `register` and the memory at `address` as operands.
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
