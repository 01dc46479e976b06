//! The guest's check before it optimises a kprobe of its own: see [`jumps`](crate::engine::arm::jumps).

use address::Gva;
use introspect::PagingState;

use crate::engine::hits::readers::{ReaderNeeds, Readers};

/// The kernel's answer if another kprobe is in the way of a jump.
const EEXIST: i64 = -17;
/// The maximum length of the displaced instructions: four bytes, and a further instruction.
const MAX_REPLACED_BYTES: u64 = 4 + 15;

impl Readers {
    /// Whether the engine allows the guest to optimise the kprobe at `kprobe`.
    pub(crate) fn may_jump(&self, paging: &PagingState, kprobe: Gva) -> ReaderNeeds {
        // An unknown range is not allowed: a kprobe works without a jump.
        let replaced = self.replaced(paging, kprobe);
        match replaced {
            Some((at, len)) if self.plants.planted_in(paging, at, len).is_empty() => {
                ReaderNeeds::Nothing
            }
            _ => ReaderNeeds::Answer(EEXIST),
        }
    }

    /// The bytes that the jump of the optimised kprobe at `kprobe` would displace, except the first byte.
    fn replaced(&self, paging: &PagingState, kprobe: Gva) -> Option<(Gva, u64)> {
        let layout = self.running.kernel.optimised_kprobes()?;
        let at = self
            .running
            .word(paging, kprobe.wrapping_add(layout.address))?;
        let size = self
            .running
            .word(paging, kprobe.wrapping_add(layout.size))?;
        let size = size.min(MAX_REPLACED_BYTES);
        Some((Gva(at.wrapping_add(1)), size.saturating_sub(1)))
    }
}
