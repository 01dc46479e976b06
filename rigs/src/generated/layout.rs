//! The memory layout of the test guest. The guest's generated.h and generated.c have the same in C.

use address::{Gva, PAGE_BYTES};
use introspect::optimise::JUMP_BYTES;
use object::{Object, ObjectSection};
use probes::Kernel;

use super::program::Program;

pub(super) const SLOT_BYTES: usize = 48;
/// The offset of the jump at a snippet's branch target.
pub(super) const TAKEN_OFFSET: usize = 43;
/// The maximum length of a snippet; a jump follows the snippet.
pub(super) const CODE_BYTES: usize = TAKEN_OFFSET - JUMP_BYTES;

pub(super) const DATA_BYTES: usize = 512;
pub(super) const EDGE_BYTES: usize = 64;
pub(super) const STACK_BYTES: usize = 256;

/// Addresses in the test guest. The link addresses are the running addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    slots: u64,
    next: u64,
    taken: u64,
    pages: u64,
}

impl Layout {
    pub(super) fn of(guest: &[u8]) -> Result<Self, String> {
        let kernel = Kernel::from_vmlinux(guest).map_err(|error| error.to_string())?;
        let address = |name: &str| {
            let symbol = kernel.symbols().lookup(name);
            symbol
                .map(|symbol| symbol.address.0)
                .ok_or_else(|| format!("the test guest has no {name}"))
        };
        Ok(Self {
            slots: address("generated_slots")?,
            next: address("generated_next")?,
            taken: address("generated_taken")?,
            pages: address("generated_pages")?,
        })
    }

    /// Where a snippet begins.
    pub(super) fn slot(&self, number: usize) -> u64 {
        self.slots + (number * SLOT_BYTES) as u64
    }

    /// Where branches of the snippet at `slot` go.
    pub(super) fn target(slot: u64) -> u64 {
        slot + TAKEN_OFFSET as u64
    }

    /// Where the jump behind a snippet goes.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Where the jump at a snippet's branch target goes.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The middle of the data, on the border of two pages.
    pub(super) fn middle(&self) -> u64 {
        self.pages + PAGE_BYTES
    }

    pub(super) fn data(&self) -> u64 {
        self.middle() - DATA_BYTES as u64 / 2
    }

    /// The start of an unmapped page, behind the bytes of the edge.
    pub(super) fn absent(&self) -> u64 {
        self.pages + 2 * PAGE_BYTES
    }

    pub(super) fn read_only(&self) -> u64 {
        self.pages + 3 * PAGE_BYTES
    }

    pub(super) fn stack(&self) -> u64 {
        self.pages + 4 * PAGE_BYTES + PAGE_BYTES / 2
    }

    /// Whether an access to the bytes stays within the memory allowed for snippets.
    pub(super) fn may_touch(&self, at: u64, bytes: u64) -> bool {
        let edge = self.absent() - EDGE_BYTES as u64;
        self.may_write(at, bytes)
            || within(at, bytes, edge, EDGE_BYTES as u64 + PAGE_BYTES)
            || within(at, bytes, self.read_only(), PAGE_BYTES)
            || !is_canonical(at)
            || !is_canonical(at.wrapping_add(bytes - 1))
    }

    /// Whether snippets may write the bytes without a fault.
    pub(super) fn may_write(&self, at: u64, bytes: u64) -> bool {
        let edge = self.absent() - EDGE_BYTES as u64;
        within(at, bytes, self.data(), DATA_BYTES as u64)
            || within(at, bytes, edge, EDGE_BYTES as u64)
            || within(at, bytes, self.stack(), STACK_BYTES as u64)
    }

    /// The code in the slot at `slot`: the snippet, the jump behind the snippet, and the jump at the branch target.
    pub(super) fn slot_code(&self, slot: u64, code: &[u8]) -> [u8; SLOT_BYTES] {
        assert!(code.len() <= CODE_BYTES, "{code:02x?}");
        let mut bytes = [0x90; SLOT_BYTES];
        bytes[..code.len()].copy_from_slice(code);
        bytes[code.len()..][..JUMP_BYTES]
            .copy_from_slice(&jump(slot + code.len() as u64, self.next));
        bytes[TAKEN_OFFSET..].copy_from_slice(&jump(Self::target(slot), self.taken));
        bytes
    }

    /// The test guest with the program's code in the slots.
    pub(super) fn with_code(&self, guest: &[u8], program: &Program) -> Result<Vec<u8>, String> {
        let range = object::File::parse(guest)
            .ok()
            .and_then(|file| file.section_by_name(".generated")?.file_range())
            .ok_or("the test guest has no slots")?;
        let start = usize::try_from(range.0).map_err(|error| error.to_string())?;
        let mut file = guest.to_vec();
        for (number, snippet) in program.snippets.iter().enumerate() {
            let place = start + number * SLOT_BYTES;
            let slot = file
                .get_mut(place..place + SLOT_BYTES)
                .ok_or("the test guest has too few slots")?;
            slot.copy_from_slice(&self.slot_code(self.slot(number), &snippet.code));
        }
        Ok(file)
    }

    /// The start of each instruction in a slot, up to the first undecodable bytes, without fillers.
    pub(super) fn boundaries(&self, slot: u64, code: &[u8]) -> Vec<Gva> {
        let bytes = self.slot_code(slot, code);
        introspect::insn::boundaries(&bytes, Gva(slot))
            .map_while(Result::ok)
            .map(|decoded| decoded.at())
            .filter(|at| {
                let offset = at.0 - slot;
                offset <= code.len() as u64 || offset == TAKEN_OFFSET as u64
            })
            .collect()
    }
}

fn within(at: u64, bytes: u64, start: u64, len: u64) -> bool {
    let offset = at.wrapping_sub(start);
    offset < len && offset + bytes <= len
}

fn is_canonical(at: u64) -> bool {
    let upper = at.cast_signed() >> 47;
    upper == 0 || upper == -1
}

fn jump(from: u64, to: u64) -> [u8; JUMP_BYTES] {
    let [a, b, c, d, ..] = to.wrapping_sub(from + JUMP_BYTES as u64).to_le_bytes();
    [0xe9, a, b, c, d]
}

#[cfg(test)]
impl Layout {
    /// Addresses similar to the test guest's.
    pub(super) fn example() -> Self {
        Self {
            slots: 0x10_4000,
            next: 0x10_3000,
            taken: 0x10_3010,
            pages: 0x12_6000,
        }
    }
}
