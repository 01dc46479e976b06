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
//! being filled interrupts are off, so that a task is never interrupted there; what can be interrupted anywhere are the
//! first two instructions, and those behind `popfq`.

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, eax, ecx, ptr, r8, r9, r10, r11, r12, r13, r14, r15,
    rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::{
    BlockEncoderOptions, Code as Opcode, IcedError, Instruction, MemoryOperand, Register,
};
use introspect::Gva;
use vmm::Pop;

use super::jumped::Jumped;
use super::ring::{CPU, FIRST, FLAGS, HEAD, LIMIT, REGISTERS, SLOT_BYTES, SLOTS, TAIL, TSC, WHO};
use super::{DetourError, WayOut};

/// What a detour does before it executes what was jumped over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Adds one to the cell that the guest's kernel sees here.
    Count(Gva),
    /// Leaves a record.
    Record {
        /// The ring, as the guest's kernel sees it.
        ring: Gva,
        /// What the record says of whose it is; not 0.
        who: u32,
        /// Where the number of the processor is, from `gs`: 32 bits.
        cpu: Gva,
        /// What leaves the guest when the ring is full.
        plant: u8,
    },
}

/// A detour, assembled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) bytes: Vec<u8>,
    pub(super) exit: Option<Exit>,
    /// For each of its instructions: where a thread goes on that is at it and has to leave.
    pub(super) ways_out: Vec<(Gva, WayOut)>,
}

/// Where a detour leaves the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    /// The plant's byte.
    pub(super) at: Gva,
    /// Where the detour goes on.
    pub(super) on: Gva,
}

const FLAGS_PUSHED: &[Pop] = &[Pop::Flags];
const SAVED: &[Pop] = &[Pop::Rdx, Pop::Rcx, Pop::Rax, Pop::Flags];
/// Beside the flags.
const SAVED_REGISTERS: [AsmRegister64; 3] = [rax, rcx, rdx];

/// Assembles a detour that begins at `at`.
///
/// # Errors
///
/// When something that it has to reach is too far away.
pub(super) fn assemble(jumped: &Jumped, work: Work, at: Gva) -> Result<Code, DetourError> {
    let mut writer = Writer::new(jumped)?;
    match work {
        Work::Count(cell) => writer.count(cell)?,
        Work::Record {
            ring,
            who,
            cpu,
            plant,
        } => writer.record(ring, who, cpu, plant)?,
    }
    writer.finish(at)
}

impl From<IcedError> for DetourError {
    fn from(_: IcedError) -> Self {
        // Everything else about the instructions is known when this is compiled.
        Self::TooFar
    }
}

struct Writer<'j> {
    asm: CodeAssembler,
    jumped: &'j Jumped,
    /// From which instruction on there is which way out.
    stands: Vec<(usize, WayOut)>,
    instructions: CodeLabel,
    /// Where it exits, if it does.
    exit: Option<CodeLabel>,
}

/// What is at an address, for an instruction of any place.
fn at(address: Gva) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RIP, address.0.cast_signed())
}

/// An offset or a size, which is far below any limit.
fn small(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

impl<'j> Writer<'j> {
    fn new(jumped: &'j Jumped) -> Result<Self, IcedError> {
        let mut asm = CodeAssembler::new(64)?;
        Ok(Self {
            instructions: asm.create_label(),
            asm,
            jumped,
            stands: Vec::new(),
            exit: None,
        })
    }

    /// Who is at the next instruction, or at one behind it, has this pushed and not executed what was jumped over.
    fn stand(&mut self, pops: &'static [Pop]) {
        let to = self.jumped.at();
        let index = self.asm.instructions().len();
        self.stands.push((index, WayOut { to, pops }));
    }

    fn count(&mut self, cell: Gva) -> Result<(), IcedError> {
        self.stand(&[]);
        self.asm.pushfq()?;
        self.stand(FLAGS_PUSHED);
        let mut add = Instruction::with1(Opcode::Inc_rm64, at(cell))?;
        add.set_has_lock_prefix(true);
        self.asm.add_instruction(add)?;
        self.asm.popfq()?;
        self.instructions()
    }

    fn record(&mut self, ring: Gva, who: u32, cpu: Gva, plant: u8) -> Result<(), IcedError> {
        let mut full = self.asm.create_label();
        let mut exit = self.asm.create_label();
        self.save()?;
        self.room(ring, full)?;
        self.slot(ring)?;
        self.fill(who, cpu)?;
        self.restore()?;
        self.instructions()?;

        self.asm.set_label(&mut full)?;
        self.restore()?;
        self.stand(&[]);
        self.asm.set_label(&mut exit)?;
        self.asm.db(&[plant])?;
        // Never executed: the VMM sets RIP. Where it is gone, and nobody does, the detour still goes on.
        self.asm.jmp(self.instructions)?;
        self.exit = Some(exit);
        Ok(())
    }

    /// Flags and registers go to the stack, and interrupts off.
    fn save(&mut self) -> Result<(), IcedError> {
        self.stand(&[]);
        self.asm.pushfq()?;
        self.stand(FLAGS_PUSHED);
        self.asm.cli()?;
        for (register, pushed) in SAVED_REGISTERS.into_iter().zip(1..) {
            self.asm.push(register)?;
            self.stand(&SAVED[SAVED_REGISTERS.len() - pushed..]);
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), IcedError> {
        for (register, popped) in SAVED_REGISTERS.into_iter().rev().zip(0..) {
            self.stand(&SAVED[popped..]);
            self.asm.pop(register)?;
        }
        self.stand(FLAGS_PUSHED);
        self.asm.popfq()
    }

    /// Goes to `full` when there is no room.
    fn room(&mut self, ring: Gva, full: CodeLabel) -> Result<(), IcedError> {
        let (head, tail) = (ring.wrapping_add(HEAD), ring.wrapping_add(TAIL));
        let load = Instruction::with2(Opcode::Mov_r64_rm64, Register::RAX, at(head))?;
        let less = Instruction::with2(Opcode::Sub_r64_rm64, Register::RAX, at(tail))?;
        self.asm.add_instruction(load)?;
        self.asm.add_instruction(less)?;
        self.asm.cmp(rax, small(LIMIT))?;
        self.asm.jae(full)
    }

    /// Takes a slot: its address comes to RCX.
    fn slot(&mut self, ring: Gva) -> Result<(), IcedError> {
        self.asm.mov(ecx, 1)?;
        let head = at(ring.wrapping_add(HEAD));
        let mut take = Instruction::with2(Opcode::Xadd_rm64_r64, head, Register::RCX)?;
        take.set_has_lock_prefix(true);
        self.asm.add_instruction(take)?;
        self.asm.and(ecx, small(SLOTS - 1))?;
        self.asm.imul_3(ecx, ecx, small(SLOT_BYTES))?;
        let first = at(ring.wrapping_add(FIRST));
        let load = Instruction::with2(Opcode::Lea_r64_m, Register::RAX, first)?;
        self.asm.add_instruction(load)?;
        self.asm.add(rcx, rax)
    }

    /// Fills the slot at RCX, and says that it is filled.
    fn fill(&mut self, who: u32, cpu: Gva) -> Result<(), IcedError> {
        let asm = &mut self.asm;
        let register = |number: u64| ptr(rcx + small(REGISTERS + 8 * number));
        for (number, held) in [
            (3, rbx),
            (5, rbp),
            (6, rsi),
            (7, rdi),
            (8, r8),
            (9, r9),
            (10, r10),
            (11, r11),
            (12, r12),
            (13, r13),
            (14, r14),
            (15, r15),
        ] {
            asm.mov(register(number), held)?;
        }
        // rdx, rcx, rax, flags: as they were pushed.
        for (number, back) in [(2, 0), (1, 8), (0, 16)] {
            asm.mov(rax, ptr(rsp + back))?;
            asm.mov(register(number), rax)?;
        }
        asm.mov(rax, ptr(rsp + 24))?;
        asm.mov(ptr(rcx + small(FLAGS)), rax)?;
        asm.lea(rax, ptr(rsp + 32))?;
        asm.mov(register(4), rax)?;
        asm.rdtsc()?;
        asm.mov(ptr(rcx + small(TSC)), eax)?;
        asm.mov(ptr(rcx + small(TSC + 4)), iced_x86::code_asm::edx)?;
        let from_gs = MemoryOperand::new(
            Register::None,
            Register::None,
            1,
            cpu.0.cast_signed(),
            8,
            false,
            Register::GS,
        );
        let number = Instruction::with2(Opcode::Mov_r32_rm32, Register::EAX, from_gs)?;
        asm.add_instruction(number)?;
        asm.mov(ptr(rcx + small(CPU)), eax)?;
        asm.mov(eax, who)?;
        asm.mov(ptr(rcx + small(WHO)), eax)
    }

    /// What was jumped over, and the jump back.
    fn instructions(&mut self) -> Result<(), IcedError> {
        self.asm.set_label(&mut self.instructions)?;
        for decoded in self.jumped.instructions() {
            let index = self.asm.instructions().len();
            self.stands.push((index, WayOut::plain(decoded.at())));
            self.asm.db(decoded.bytes())?;
        }
        let next = self.jumped.next();
        let index = self.asm.instructions().len();
        self.stands.push((index, WayOut::plain(next)));
        self.asm.jmp(next.0)
    }

    fn finish(mut self, at: Gva) -> Result<Code, DetourError> {
        let wanted = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let assembled = self.asm.assemble_options(at.0, wanted)?;
        let on = Gva(assembled.label_ip(&self.instructions)?);
        let exit = self.exit.map(|exit| assembled.label_ip(&exit));
        let exit = exit.transpose()?.map(|at| Exit { at: Gva(at), on });
        let mut ways_out = Vec::new();
        for (offset, index) in assembled.inner.new_instruction_offsets.iter().zip(0..) {
            if *offset == u32::MAX {
                return Err(DetourError::TooFar);
            }
            let known = self.stands.partition_point(|(from, _)| *from <= index);
            let stand = known.checked_sub(1).map(|last| self.stands[last].1);
            ways_out.extend(stand.map(|way| (at.wrapping_add(u64::from(*offset)), way)));
        }
        Ok(Code {
            bytes: assembled.inner.code_buffer,
            exit,
            ways_out,
        })
    }
}
