//! The switch: where each `int3` that stands for a plant leads on.
//!
//! ```text
//!  probed text            the kernel's handler of int3         the switch                       a detour
//!  ┌───────────────┐      ┌──────────────────────────┐         ┌───────────────────────┐        ┌───────────┐
//!  │ .. [cc] c3 .. │ ───▶ │ asm_exc_int3: … jne      │    ┌──▶ │ frame's RIP a site's? │        │ …         │
//!  └───────────────┘ #BP  │ push ── jmp ─────────────┼────┘    │   RIP := its detour   │ iretq  │ test …    │
//!                         │ push     (its own,       │ ◀───────│   no: two pushes, jmp │ ─────▶ │ jmp back  │
//!                         │ …         of others)     │         └───────────────────────┘        └───────────┘
//! ```
//!
//! An `int3` needs one byte, so it fits where a jump does not: short instructions, places that calls return to. It comes
//! to the kernel's handler with interrupts off; there, where nothing but an `int3` of ring 0 comes by
//! ([`introspect::KernelInt3`]), a jump leads to the switch. That looks the frame's RIP up in a table, puts the address of
//! the site's detour in its place, and returns from the exception: everything is as it was, but for RIP. What is no site
//! goes on in the kernel's handler.
//!
//! A site that goes stays in the table, leading back: a processor may have executed its `int3` and not come to the
//! switch yet. It is sent back to the site, where by then the guest's own byte is, or a plant. Only if memory shows an
//! `int3` there, that is the guest's own, and goes to its handler. Where a plant lies over an `int3` of the guest's own, so
//! that memory does not show it, the site leads to the handler from the first time that the guest is given it.
//!
//! Code and table stay as long as the guest runs, and so does the jump in the kernel's handler.

use std::collections::BTreeMap;

use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, byte_ptr, eax, ecx, ptr, qword_ptr, rax, rcx, rdx, rsp,
};
use iced_x86::{
    BlockEncoderOptions, Code as Opcode, IcedError, Instruction, MemoryOperand, Register,
};
use introspect::insn::Decoded;
use introspect::{Gva, KernelInt3};

use super::DetourError;
use super::code::Unwritten;
use super::made::near_jump;
use crate::plant::Jump;

/// How many places the table has; a power of two.
const PLACES: u32 = 1 << 17;
/// An address is multiplied by this, 32 bits, and the upper bits of what comes out are where it is looked for first.
const FACTOR: u32 = 0x9e37_79b1;
const SHIFT: u32 = u32::BITS - PLACES.ilog2();
/// An address behind an `int3`, and where it leads on: a detour, or one of the following.
const PLACE_BYTES: usize = 16;
/// Back to the site.
const BACK: u64 = 0;
/// To the kernel's handler.
const TO_HANDLER: u64 = 1;
/// So many sites there are at the most: the search for an address that is not in the table ends at an empty place.
const MAX_SITES: usize = PLACES as usize / 4 * 3;

const _: () = assert!(PLACES as u64 * PLACE_BYTES as u64 <= super::place::REGION_BYTES);

const INT3: i32 = 0xcc;
/// Above the stack pointer, in the code: the frame, with three registers saved.
const SAVED_FRAME: i32 = 32;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Switch {
    int3: KernelInt3,
    entry: Gva,
    code: Code,
    /// By the address behind the `int3`.
    sites: BTreeMap<u64, Site>,
    /// Which places are taken.
    taken: Vec<bool>,
}

/// Where an `int3` leads on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeadsTo {
    /// To this detour.
    Detour(Gva),
    /// Back to where it was, unless memory shows one there, which goes to the handler: it is ours no more.
    Back,
    /// To the kernel's handler: it is the guest's own.
    Handler,
}

#[derive(Clone, Copy, Debug)]
struct Site {
    place: usize,
    leads_to: LeadsTo,
}

/// A place of the table, to be written: how far from its beginning, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewPlace {
    pub(super) offset: usize,
    pub(super) bytes: [u8; PLACE_BYTES],
}

#[derive(Clone, Debug)]
struct Code {
    bytes: Vec<u8>,
    /// Behind the instruction that reads from the table where a site leads.
    decided: Gva,
}

fn place_of(behind: u64) -> usize {
    let [a, b, c, d, ..] = behind.to_le_bytes();
    let hash = u32::from_le_bytes([a, b, c, d]).wrapping_mul(FACTOR) >> SHIFT;
    usize::try_from(hash).unwrap_or(0)
}

impl Switch {
    /// Its code has no more bytes than this.
    pub(super) const CODE_BYTES: usize = 256;

    /// To be written at `at`; its table is at `table`, and all zero.
    pub(super) fn new(at: Gva, table: Gva, int3: &KernelInt3) -> Result<Self, DetourError> {
        let code = Writer::new(int3)
            .and_then(|writer| writer.assemble(at, table))
            .map_err(|_| Unwritten::TooFar)?;
        if code.bytes.len() > Self::CODE_BYTES {
            return Err(DetourError::Full);
        }
        Ok(Self {
            int3: int3.clone(),
            entry: at,
            code,
            sites: BTreeMap::new(),
            taken: vec![false; PLACES as usize],
        })
    }

    /// What is to be in memory before anything leads to it.
    pub(super) fn code(&self) -> &[u8] {
        &self.code.bytes
    }

    /// Its first instruction.
    pub(super) fn entry(&self) -> Gva {
        self.entry
    }

    /// Where the kernel's handler is led here, and by which jump.
    pub(super) fn jump(&self) -> Result<(Gva, Jump), DetourError> {
        let at = self.int3.pushes;
        Ok((at, near_jump(at, self.entry)?))
    }

    /// The `int3` at `site` leads there from now on. One that has never led to a detour is the guest's anyway.
    pub(super) fn lead(
        &mut self,
        site: Gva,
        leads_to: LeadsTo,
    ) -> Result<Option<NewPlace>, DetourError> {
        let behind = site.wrapping_add(1).0;
        let known = self.sites.get(&behind).map(|known| known.place);
        let place = match (known, leads_to) {
            (Some(place), _) => place,
            (None, LeadsTo::Back | LeadsTo::Handler) => return Ok(None),
            (None, LeadsTo::Detour(_)) if self.sites.len() >= MAX_SITES => {
                return Err(DetourError::Full);
            }
            (None, LeadsTo::Detour(_)) => {
                let first = place_of(behind);
                let places = (first..self.taken.len()).chain(0..first);
                let mut free = places.filter(|place| !self.taken[*place]);
                free.next().ok_or(DetourError::Full)?
            }
        };
        self.sites.insert(behind, Site { place, leads_to });
        self.taken[place] = true;
        let to = match leads_to {
            LeadsTo::Detour(to) => to.0,
            LeadsTo::Back => BACK,
            LeadsTo::Handler => TO_HANDLER,
        };
        let mut bytes = [0; PLACE_BYTES];
        bytes[..8].copy_from_slice(&behind.to_le_bytes());
        bytes[8..].copy_from_slice(&to.to_le_bytes());
        let offset = place * PLACE_BYTES;
        Ok(Some(NewPlace { offset, bytes }))
    }

    /// Whether a vCPU that comes from `site` is sent back there.
    pub(super) fn sends_back(&self, site: Gva) -> bool {
        let known = self.sites.get(&site.wrapping_add(1).0);
        known.is_some_and(|known| known.leads_to == LeadsTo::Back)
    }

    /// Whether a vCPU at `rip` may have executed an `int3` whose site it has not looked up yet.
    pub(super) fn is_before_lookup(&self, rip: Gva) -> bool {
        let mut before = self.int3.before.iter();
        before.any(|at| *at == rip) || (self.entry.0..self.code.decided.0).contains(&rip.0)
    }
}

struct Writer<'i> {
    asm: CodeAssembler,
    int3: &'i KernelInt3,
}

impl<'i> Writer<'i> {
    fn new(int3: &'i KernelInt3) -> Result<Self, IcedError> {
        let asm = CodeAssembler::new(64)?;
        Ok(Self { asm, int3 })
    }

    fn assemble(mut self, at: Gva, table: Gva) -> Result<Code, IcedError> {
        let [mut look, mut found, mut decided, mut on, mut gone, mut miss] =
            std::array::from_fn(|_| self.asm.create_label());
        for register in [rax, rcx, rdx] {
            self.asm.push(register)?;
        }
        self.index(table)?;
        self.asm.set_label(&mut look)?;
        self.asm.cmp(ptr(rdx + rcx * 8), rax)?;
        self.asm.je(found)?;
        self.asm.cmp(qword_ptr(rdx + rcx * 8), 0)?;
        self.asm.je(miss)?;
        self.asm.add(ecx, 2)?;
        self.asm.and(ecx, (2 * PLACES - 1).cast_signed())?;
        self.asm.jmp(look)?;
        self.asm.set_label(&mut found)?;
        self.asm.mov(rcx, ptr(rdx + rcx * 8 + 8))?;
        self.asm.set_label(&mut decided)?;
        self.asm
            .cmp(rcx, i32::try_from(TO_HANDLER).unwrap_or(i32::MAX))?;
        self.asm.jbe(gone)?;
        self.leave(&mut on)?;
        self.asm.set_label(&mut gone)?;
        self.asm.je(miss)?;
        self.asm.dec(rax)?;
        self.asm.cmp(byte_ptr(rax), INT3)?;
        self.asm.je(miss)?;
        self.asm.mov(rcx, rax)?;
        self.asm.jmp(on)?;
        self.asm.set_label(&mut miss)?;
        self.hand_on()?;
        let wanted = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let assembled = self.asm.assemble_options(at.0, wanted)?;
        Ok(Code {
            decided: Gva(assembled.label_ip(&decided)?),
            bytes: assembled.inner.code_buffer,
        })
    }

    /// Where the table begins comes to RDX, where to look to RCX, and what for to RAX.
    fn index(&mut self, table: Gva) -> Result<(), IcedError> {
        self.asm.mov(rax, ptr(rsp + SAVED_FRAME))?;
        self.asm.imul_3(ecx, eax, FACTOR.cast_signed())?;
        self.asm.shr(ecx, SHIFT)?;
        self.asm.add(ecx, ecx)?;
        let table = MemoryOperand::with_base_displ(Register::RIP, table.0.cast_signed());
        let lea = Instruction::with2(Opcode::Lea_r64_m, Register::RDX, table)?;
        self.asm.add_instruction(lea)
    }

    fn restore(&mut self) -> Result<(), IcedError> {
        for register in [rdx, rcx, rax] {
            self.asm.pop(register)?;
        }
        Ok(())
    }

    /// Back from the exception, to what RCX says.
    fn leave(&mut self, on: &mut CodeLabel) -> Result<(), IcedError> {
        self.asm.set_label(on)?;
        self.asm.mov(ptr(rsp + SAVED_FRAME), rcx)?;
        self.restore()?;
        self.asm.add(rsp, 8)?;
        self.asm.iretq()
    }

    /// It is none of ours: on in the kernel's handler, behind what was jumped over.
    fn hand_on(&mut self) -> Result<(), IcedError> {
        self.restore()?;
        for push in &self.int3.first {
            self.asm.db(push.bytes())?;
        }
        let [_, last]: &[Decoded; 2] = &self.int3.first;
        self.asm.jmp(last.next().0)
    }
}
