//! The switch: code that redirects each `int3` that replaces a plant.
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
//! An `int3` needs one byte, so an `int3` fits where a jump does not: short instructions, return sites. The processor enters the
//! kernel's handler with interrupts off. Past the check for ring 0 ([`introspect::KernelInt3`]), a jump in the handler targets
//! the switch. The switch looks the frame's RIP up in a table, replaces the RIP by the address of the site's detour, and returns
//! from the exception: all state except RIP is unchanged. If the RIP is not in the table, the kernel's handler continues.
//!
//! A removed site stays in the table, with the target "back": a processor may stand between the site's `int3` and the switch. The
//! switch returns the processor to the site, which by then holds the guest's own byte or a plant. If memory shows an `int3`
//! there, the `int3` belongs to the guest, and the guest's handler gets the #BP. A plant may lie over an `int3` of the guest's
//! own and hide the byte. There, from the first #BP delivered to the guest on, the site's target is the handler.
//!
//! Code and table stay as long as the guest runs, and so does the jump in the kernel's handler.

use std::collections::BTreeMap;

use address::Gva;
use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, byte_ptr, eax, ecx, ptr, qword_ptr, rax, rcx, rdx, rsp,
};
use iced_x86::{
    BlockEncoderOptions, Code as Opcode, IcedError, Instruction, MemoryOperand, Register,
};
use introspect::KernelInt3;
use introspect::insn::Decoded;
use text::Jump;

use super::DetourError;
use super::code::Unwritten;
use super::made::near_jump;

/// The number of entries of the table; a power of two.
const PLACES: u32 = 1 << 17;
/// The factor of the hash: the lower 32 bits of an address times the factor. The upper bits are the first index to search.
const FACTOR: u32 = 0x9e37_79b1;
const SHIFT: u32 = u32::BITS - PLACES.ilog2();
/// The size of an entry: the address behind an `int3`, and the target: a detour, [`BACK`] or [`TO_HANDLER`].
const PLACE_BYTES: usize = 16;
/// The target is the site.
const BACK: u64 = 0;
/// The target is the kernel's handler.
const TO_HANDLER: u64 = 1;
/// The maximum number of sites: the search for an unknown address ends at an empty entry.
const MAX_SITES: usize = PLACES as usize / 4 * 3;

const _: () = assert!(PLACES as u64 * PLACE_BYTES as u64 <= super::place::REGION_BYTES);

const INT3: i32 = 0xcc;
/// The offset of the frame's RIP from the stack pointer, with three registers saved.
const SAVED_FRAME: i32 = 32;

/// The code and table of the switch.
#[derive(Debug)]
pub(super) struct Switch {
    int3: KernelInt3,
    entry: Gva,
    code: Code,
    /// The sites, by the address behind the `int3`.
    sites: BTreeMap<u64, Site>,
    /// Whether each entry of the table is taken.
    taken: Vec<bool>,
}

/// The target of an `int3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeadsTo {
    /// The given detour.
    Detour(Gva),
    /// The site, since the injected `int3` is gone. If memory shows an `int3` there, the target is the kernel's handler.
    Back,
    /// The kernel's handler: the `int3` is the guest's own.
    Handler,
}

#[derive(Clone, Copy, Debug)]
struct Site {
    place: usize,
    leads_to: LeadsTo,
}

/// An entry of the table, to be written: the offset and the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewPlace {
    pub(super) offset: usize,
    pub(super) bytes: [u8; PLACE_BYTES],
}

#[derive(Clone, Debug)]
struct Code {
    bytes: Vec<u8>,
    /// The address behind the instruction that reads a site's target from the table.
    decided: Gva,
}

fn place_of(behind: u64) -> usize {
    let [a, b, c, d, ..] = behind.to_le_bytes();
    let hash = u32::from_le_bytes([a, b, c, d]).wrapping_mul(FACTOR) >> SHIFT;
    usize::try_from(hash).unwrap_or(0)
}

impl Switch {
    /// The maximum length of the switch's code.
    pub(super) const CODE_BYTES: usize = 256;

    /// A switch to be written at `at`; its table is at `table`, and all zero.
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

    /// The code, to be written before any jump targets the switch.
    pub(super) fn code(&self) -> &[u8] {
        &self.code.bytes
    }

    /// The address of the first instruction.
    pub(super) fn entry(&self) -> Gva {
        self.entry
    }

    /// The jump from the kernel's handler to the switch, and its address.
    pub(super) fn jump(&self) -> Result<(Gva, Jump), DetourError> {
        let at = self.int3.pushes;
        Ok((at, near_jump(at, self.entry)?))
    }

    /// Sets the target of the `int3` at `site`. `None` for `Back` or `Handler` at an unknown site: its `int3` is the guest's
    /// anyway.
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

    /// Whether the switch returns a vCPU from `site` to the site.
    pub(super) fn sends_back(&self, site: Gva) -> bool {
        let known = self.sites.get(&site.wrapping_add(1).0);
        known.is_some_and(|known| known.leads_to == LeadsTo::Back)
    }

    /// Whether a vCPU at `rip` may stand between an `int3` and the lookup of its site.
    pub(super) fn is_before_lookup(&self, rip: Gva) -> bool {
        let KernelInt3 { entry, pushes, .. } = self.int3;
        (entry..=pushes).contains(&rip) || (self.entry..self.code.decided).contains(&rip)
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

    /// Loads RDX with the table's address, RCX with the first index, and RAX with the address to find.
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

    /// Returns from the exception, to the address in RCX.
    fn leave(&mut self, on: &mut CodeLabel) -> Result<(), IcedError> {
        self.asm.set_label(on)?;
        self.asm.mov(ptr(rsp + SAVED_FRAME), rcx)?;
        self.restore()?;
        self.asm.add(rsp, 8)?;
        self.asm.iretq()
    }

    /// Handles an `int3` of the guest's own: continues in the kernel's handler, behind the displaced pushes.
    fn hand_on(&mut self) -> Result<(), IcedError> {
        self.restore()?;
        for push in &self.int3.first {
            self.asm.db(push.bytes())?;
        }
        let [_, last]: &[Decoded; 2] = &self.int3.first;
        self.asm.jmp(last.next().0)
    }
}
