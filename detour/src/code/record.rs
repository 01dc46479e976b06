//! Writes a record, in about forty instructions.

use address::Gva;
use iced_x86::code_asm::{
    CodeLabel, dword_ptr, eax, ecx, edx, ptr, r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx,
    rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::{Code as Opcode, IcedError, Instruction, Register};

use super::{
    Of, SAVED_BYTES, SAVED_FLAGS, SAVED_RAX, SAVED_RCX, SAVED_RDX, Unwritten, Writer, at, from_gs,
    small,
};
use crate::processor::NotKept;
use crate::ring::{
    COMM, CPU, FIRST, FLAGS, HEAD, LIMIT, NO_PROCESS, NO_USER, PART_NUMBER, PID, REGISTERS,
    RSP_BELOW, SITE_FACTOR, SITE_SHIFT, SITES, SLOT_BYTES, SLOTS, TAIL, TASK_FLAGS, TID, TOP, TSC,
    UID,
};

const _: () = assert!(SAVED_BYTES == RSP_BELOW);

impl Writer<'_> {
    /// Writes a record; jumps to `full` if the ring has no room.
    pub(super) fn record(
        &mut self,
        ring: Gva,
        part_number: u32,
        of: Of,
        full: CodeLabel,
    ) -> Result<(), Unwritten> {
        let number = self.work.processor.number;
        let number = number.ok_or(Unwritten::NotKept(NotKept::Number))?;
        self.room(ring, full)?;
        self.slot(ring)?;
        self.registers()?;
        self.time()?;
        let asm = &mut self.asm;
        let load = Instruction::with2(Opcode::Mov_r32_rm32, Register::EAX, from_gs(number))?;
        asm.add_instruction(load)?;
        asm.mov(ptr(rcx + small(CPU)), eax)?;
        self.task()?;
        let asm = &mut self.asm;
        if matches!(of, Of::Call | Of::Entry) {
            asm.mov(rax, ptr(rsp + SAVED_BYTES))?;
            asm.mov(ptr(rcx + small(TOP)), rax)?;
        }
        // A nonzero `who` marks the record as complete.
        asm.mov(dword_ptr(rcx + small(PART_NUMBER)), part_number)?;
        Ok(())
    }

    /// Jumps to `unknown` if the return address, on top of the stack, is not in the table.
    pub(super) fn known_return(&mut self, ring: Gva, unknown: CodeLabel) -> Result<(), Unwritten> {
        self.asm.mov(rax, ptr(rsp + SAVED_BYTES))?;
        self.asm.imul_3(ecx, eax, SITE_FACTOR.cast_signed())?;
        self.asm.shr(ecx, SITE_SHIFT)?;
        self.with_word(Opcode::Lea_r64_m, Register::RDX, ring.wrapping_add(SITES))?;
        self.asm.cmp(ptr(rdx + rcx * 8), rax)?;
        self.asm.jne(unknown)?;
        Ok(())
    }

    fn room(&mut self, ring: Gva, full: CodeLabel) -> Result<(), IcedError> {
        let (head, tail) = (ring.wrapping_add(HEAD), ring.wrapping_add(TAIL));
        self.with_word(Opcode::Mov_r64_rm64, Register::RAX, head)?;
        self.with_word(Opcode::Sub_r64_rm64, Register::RAX, tail)?;
        self.asm.cmp(rax, small(LIMIT))?;
        self.asm.jae(full)
    }

    /// Takes a slot, and sets RCX to the slot's address.
    fn slot(&mut self, ring: Gva) -> Result<(), IcedError> {
        self.asm.mov(ecx, 1)?;
        let head = at(ring.wrapping_add(HEAD));
        let mut take = Instruction::with2(Opcode::Xadd_rm64_r64, head, Register::RCX)?;
        take.set_has_lock_prefix(true);
        self.asm.add_instruction(take)?;
        self.asm.and(ecx, small(SLOTS - 1))?;
        self.asm.imul_3(ecx, ecx, small(SLOT_BYTES))?;
        let first = ring.wrapping_add(FIRST);
        // The region is in the last 2 GiB of the address space, as the kernel's text.
        match i32::try_from(first.0.cast_signed()) {
            Ok(first) => self.asm.add(rcx, first),
            Err(_) => {
                self.with_word(Opcode::Lea_r64_m, Register::RAX, first)?;
                self.asm.add(rcx, rax)
            }
        }
    }

    /// Stores all registers in the slot, with their values before the detour.
    fn registers(&mut self) -> Result<(), IcedError> {
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
        for (number, saved) in [(2, SAVED_RDX), (1, SAVED_RCX), (0, SAVED_RAX)] {
            asm.mov(rax, ptr(rsp + saved))?;
            asm.mov(register(number), rax)?;
        }
        asm.mov(rax, ptr(rsp + SAVED_FLAGS))?;
        asm.mov(ptr(rcx + small(FLAGS)), rax)?;
        // The reader adds the saved bytes.
        asm.mov(register(4), rsp)
    }

    /// Stores the task that the processor runs. A kernel has a task on each processor from its first instruction in C on.
    fn task(&mut self) -> Result<(), IcedError> {
        let processor = self.work.processor;
        let asm = &mut self.asm;
        let (Some(task), Some(fields)) = (processor.task, processor.fields) else {
            return asm.mov(dword_ptr(rcx + small(PID)), NO_PROCESS);
        };
        let load = Instruction::with2(Opcode::Mov_r64_rm64, Register::RAX, from_gs(task))?;
        asm.add_instruction(load)?;
        for (from, to) in [
            (fields.numbers, TID),
            (fields.comm, COMM),
            (fields.comm.wrapping_add(8), COMM + 8),
        ] {
            asm.mov(rdx, ptr(rax + from))?;
            asm.mov(ptr(rcx + small(to)), rdx)?;
        }
        let Some(user) = fields.user else {
            return asm.mov(dword_ptr(rcx + small(UID)), NO_USER);
        };
        asm.mov(edx, ptr(rax + user.flags))?;
        asm.mov(ptr(rcx + small(TASK_FLAGS)), edx)?;
        // A task has credentials from its first instruction to its last.
        asm.mov(rdx, ptr(rax + user.cred))?;
        asm.mov(edx, ptr(rdx + user.uid))?;
        asm.mov(ptr(rcx + small(UID)), edx)
    }

    fn time(&mut self) -> Result<(), IcedError> {
        let asm = &mut self.asm;
        asm.rdtsc()?;
        asm.mov(ptr(rcx + small(TSC)), eax)?;
        asm.mov(ptr(rcx + small(TSC + 4)), edx)
    }
}
