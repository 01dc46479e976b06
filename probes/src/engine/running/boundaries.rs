//! Instruction boundaries in the present text.

use address::{Gpa, Gva};
use introspect::insn::{Decoded, MAX_LENGTH_BYTES, decode};
use introspect::optimise::JUMP_BYTES;

use crate::engine::running::{INT3, Running};

/// The opcode of the jump of an optimised kprobe, and the jump's length.
const JUMP: u8 = 0xe9;

impl Running {
    /// The length of the instruction at `linked`, if an instruction begins there in the present text.
    pub(crate) fn boundary_in_memory(&self, linked: Gva, gpa: Gpa) -> Option<usize> {
        let within = self.kernel.symbols().resolve(linked)?;
        let start = gpa.0.checked_sub(within.offset)?;
        let linked_at = |at: u64| within.symbol.address.wrapping_add(at - start);
        // The next instruction boundary in the file, as far as the file's code can be decoded.
        let mut filed = Some(within.symbol.address);
        let mut len = |at: u64| {
            let linked = linked_at(at);
            while let Some(next) = filed.filter(|filed| *filed < linked) {
                filed = self
                    .filed_instruction(next)
                    .map(|filed| next.wrapping_add(filed.len() as u64));
            }
            self.len_in_memory(linked, Gpa(at), filed == Some(linked))
        };
        let mut at = start;
        while at < gpa.0 {
            at += len(at)? as u64;
        }
        (at == gpa.0).then(|| len(at))?
    }

    /// The length of the instruction in memory at `gpa`, ignoring a breakpoint of the guest's own. Such a breakpoint is an `int3`
    /// with the rest of an instruction of the file behind. The remainder of a shortened `ret` is not a breakpoint: no instruction
    /// of the file begins there.
    fn len_in_memory(&self, linked: Gva, gpa: Gpa, is_filed: bool) -> Option<usize> {
        let mut bytes = [0; MAX_LENGTH_BYTES];
        self.planter.read_own(gpa, &mut bytes).ok()?;
        if is_filed
            && bytes[0] == INT3
            && let Some(filed) = self.filed_instruction(linked)
            && filed.bytes()[1..] == bytes[1..filed.len()]
        {
            return Some(filed.len());
        }
        Some(decode(&bytes, linked).ok()?.len())
    }

    /// The instruction that begins at `linked` in the kernel's file.
    fn filed_instruction(&self, linked: Gva) -> Option<Decoded> {
        decode(self.kernel.bytes_at(linked, MAX_LENGTH_BYTES)?, linked).ok()
    }

    /// Whether a jump of the guest's own kprobes covers the instruction linked at `linked`, or is about to.
    pub(crate) fn is_jumped_over(&self, linked: Gva, gpa: Gpa) -> bool {
        (1..JUMP_BYTES as u64).any(|back| {
            let mut now = [0; JUMP_BYTES];
            let at = linked.wrapping_add(back.wrapping_neg());
            let Some(filed) = self.kernel.bytes_at(at, JUMP_BYTES) else {
                return false;
            };
            let gpa = gpa.wrapping_add(back.wrapping_neg());
            if self.planter.read_own(gpa, &mut now).is_err() || now[0] == filed[0] {
                return false;
            }
            // A single int3 is a kprobe without a jump; int3s in the following bytes are other kprobes.
            let is_changed = |(now, filed): (&u8, &u8)| now != filed && *now != INT3;
            let is_begun = || now.iter().zip(filed).skip(1).any(is_changed);
            let is_jump = now[0] == JUMP || (now[0] == INT3 && is_begun());
            is_jump && self.begins_instruction(at)
        })
    }

    /// Whether an instruction begins at a link-time address, by the kernel's file.
    fn begins_instruction(&self, linked: Gva) -> bool {
        let within = self.kernel.symbols().resolve(linked);
        within.is_some_and(|within| {
            let mut instructions = self.kernel.instructions(&within.symbol);
            instructions.any(|decoded| decoded.is_ok_and(|decoded| decoded.at() == linked))
        })
    }
}
