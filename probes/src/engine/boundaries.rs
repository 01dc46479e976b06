//! Instruction boundaries in the present text.

use introspect::insn::{Decoded, MAX_LENGTH_BYTES, decode};
use introspect::{Gpa, Gva};

use super::Engine;
use super::jumps::INT3;

impl Engine {
    /// The length of the instruction at `linked`, if an instruction begins there in the present text.
    pub(super) fn boundary_in_memory(&self, linked: Gva, gpa: Gpa) -> Option<usize> {
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
}
