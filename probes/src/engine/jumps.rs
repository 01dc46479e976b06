//! Jumps of the guest's optimised kprobes, over several instructions each.
//!
//! A guest that optimises a kprobe replaces five bytes of text by a jump to a copy of the displaced instructions. A plant on
//! any displaced instruction but the first would be part of the jump, and the probe would miss the executions of the copy.
//! The guest writes no jump while another kprobe is on a displaced instruction (`arch_check_optimized_kprobe` checks). The
//! engine makes the check count plants as kprobes.
//!
//! Plants placed after the guest's check remain. Before the guest writes the jump (`arch_optimize_kprobes`), the engine
//! removes such plants. After the write, the engine refuses probes there: the text shows the jump.

use introspect::{Gpa, Gva, PagingState};
use text::{GuestError, Paused, Vcpu};

use super::Engine;
use super::readers::ReaderNeeds;

/// The kernel's answer if another kprobe is in the way of a jump.
const EEXIST: i64 = -17;
/// The opcodes of a jump, and of the `int3` in the text while the kernel writes a jump.
const JUMP: u8 = 0xe9;
pub(super) const INT3: u8 = 0xcc;
const JUMP_BYTES: usize = 5;
/// The maximum length of the displaced instructions: four bytes, and a further instruction.
const MAX_REPLACED_BYTES: u64 = 4 + 15;
/// The maximum number of kprobes optimised at once.
const MAX_OPTIMISED: usize = 4096;

pub(super) const ELSEWHERE: &str =
    "a kprobe of the guest's own has this instruction executed elsewhere, in a copy";

impl Engine {
    /// Whether the engine allows the guest to optimise the kprobe at `kprobe`.
    pub(super) fn may_jump(&self, paging: &PagingState, kprobe: Gva) -> ReaderNeeds {
        // An unknown range is not allowed: a kprobe works without a jump.
        let replaced = self.replaced(paging, kprobe);
        match replaced {
            Some((at, len)) if self.planted_in(paging, at, len).is_empty() => ReaderNeeds::Nothing,
            _ => ReaderNeeds::Answer(EEXIST),
        }
    }

    /// The plants in `len` bytes from `at` on, including plants replaced by debug registers.
    fn planted_in(&self, paging: &PagingState, at: Gva, len: u64) -> Vec<Gpa> {
        self.in_memory(paging, at, len, |gpa, len| self.planter.planted(gpa, len))
    }

    /// The bytes that the jump of the optimised kprobe at `kprobe` would displace, except the first byte.
    fn replaced(&self, paging: &PagingState, kprobe: Gva) -> Option<(Gva, u64)> {
        let layout = self.kernel.optimised_kprobes()?;
        let at = self.word(paging, kprobe.wrapping_add(layout.address))?;
        let size = self.word(paging, kprobe.wrapping_add(layout.size))?;
        let size = size.min(MAX_REPLACED_BYTES);
        Some((Gva(at.wrapping_add(1)), size.saturating_sub(1)))
    }

    /// Removes the plants under the jumps that the guest is about to write, for a list of kprobes. At the guest's check no
    /// plant was there, so the present plants are newer, and have to go.
    pub(super) fn make_room_for_jumps(
        &self,
        vcpu: &mut dyn Vcpu,
        paused: &dyn Paused,
    ) -> Result<(), GuestError> {
        let Some(layout) = self.kernel.optimised_kprobes() else {
            return Ok(());
        };
        let head = Gva(vcpu.regs()?.rdi);
        let paging = vcpu.system_state()?.paging;
        let mut covered = Vec::new();
        let mut next = self.word(&paging, head).map(Gva);
        for _ in 0..MAX_OPTIMISED {
            let Some(link) = next.filter(|link| *link != head) else {
                break;
            };
            let kprobe = link.wrapping_add(layout.next.wrapping_neg());
            if let Some(at) = self.word(&paging, kprobe.wrapping_add(layout.address)) {
                covered.extend(self.planted_in(
                    &paging,
                    Gva(at.wrapping_add(1)),
                    JUMP_BYTES as u64 - 1,
                ));
            }
            next = self.word(&paging, link).map(Gva);
        }
        self.retire_covered(paused, &covered);
        Ok(())
    }

    fn retire_covered(&self, paused: &dyn Paused, covered: &[Gpa]) {
        if covered.is_empty() {
            return;
        }
        let table = self.table.load_full();
        for plant in covered.iter().filter_map(|gpa| table.at_gpa(*gpa)) {
            for (probe, _) in &plant.probes {
                self.refuse(probe, ELSEWHERE.to_owned());
            }
        }
        if let Err(error) = self.reconcile(paused) {
            self.note(None, format!("plants stay where the guest jumps: {error}"));
        }
    }

    /// Whether a jump of the guest's own kprobes covers the instruction linked at `linked`, or is about to.
    pub(super) fn is_jumped_over(&self, linked: Gva, gpa: Gpa) -> bool {
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
