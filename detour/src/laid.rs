//! Where the code of the region stands for the kernel's own: for stacks with interrupted code in the region.

use std::collections::{BTreeMap, HashMap};

use address::Gva;
use introspect::insn::{Decoded, boundaries};
use introspect::orc::Displaced;

use super::jumped::Jumped;

/// A detour or a copy in the region: its place, and the displaced instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Laid {
    /// The address of the first byte.
    pub entry: Gva,
    /// The number of bytes.
    pub len: usize,
    /// The address of the first displaced instruction in the code; work for probes is before, and exits are behind the jump back.
    displaced: Gva,
    /// The original addresses of the displaced instructions, and of the next one.
    first: Gva,
    then: Option<Gva>,
    next: Gva,
}

impl Laid {
    /// Whether the instruction at `at` is in front of the displaced instructions.
    pub(super) fn is_in_front(&self, at: Gva) -> bool {
        at < self.displaced
    }

    /// A detour for `jumped`.
    pub(super) fn detour(jumped: &Jumped, entry: Gva, len: usize, displaced: Gva) -> Self {
        Self {
            entry,
            len,
            displaced,
            first: jumped.at(),
            then: jumped.then().map(Decoded::at),
            next: jumped.next(),
        }
    }

    /// A copy of `decoded`.
    pub(super) fn copy(decoded: &Decoded, entry: Gva, len: usize) -> Self {
        Self {
            entry,
            len,
            displaced: entry,
            first: decoded.at(),
            then: None,
            next: decoded.next(),
        }
    }

    /// What the instruction at `at` stands for. `code` holds the bytes of this detour or copy, as in the guest.
    #[must_use]
    pub fn displaced_at(&self, code: &[u8], at: Gva) -> Option<Displaced> {
        let mut pushed_bytes = 0_u64;
        // The jumps in a detour go forward, apart from those behind an exit.
        let mut at_targets = HashMap::new();
        let mut number_displaced = 0;
        let mut is_behind = false;
        for decoded in boundaries(code, self.entry).map_while(Result::ok) {
            let here = decoded.at();
            let is_displaced = here >= self.displaced && !is_behind;
            let ip = match (is_displaced, number_displaced, self.then) {
                (false, ..) | (true, 0, _) => self.first,
                (true, 1, Some(then)) => then,
                (true, ..) => self.next,
            };
            if is_displaced {
                if here == at {
                    let pushed_bytes = 0;
                    return Some(Displaced { ip, pushed_bytes });
                }
                number_displaced += 1;
                // The jump back ends the displaced instructions.
                is_behind = decoded.branch_target() == Some(self.next);
                continue;
            }
            if let Some(known) = at_targets.get(&here) {
                pushed_bytes = *known;
            }
            if here == at {
                return Some(Displaced { ip, pushed_bytes });
            }
            let moved = decoded.instruction().stack_pointer_increment();
            pushed_bytes = pushed_bytes.wrapping_sub(i64::from(moved).cast_unsigned());
            if let Some(target) = decoded.branch_target() {
                at_targets.insert(target, pushed_bytes);
            }
        }
        None
    }
}

/// The detours and copies of a region, by address.
#[derive(Debug, Default)]
pub(super) struct AllLaid(BTreeMap<Gva, Laid>);

impl AllLaid {
    pub(super) fn keep(&mut self, laid: Laid) {
        self.0.insert(laid.entry, laid);
    }

    /// The detour or copy that holds `at`.
    pub(super) fn holding(&self, at: Gva) -> Option<Laid> {
        let (entry, laid) = self.0.range(..=at).next_back()?;
        let offset = at.offset_from(*entry)?;
        (offset < laid.len as u64).then_some(*laid)
    }
}

#[cfg(test)]
mod tests {
    use introspect::insn::decode;

    use super::*;
    use crate::code::{Does, Of, Work, assemble};
    use crate::processor::Processor;

    const ENTRY: Gva = Gva(0xffff_ffff_9000_0040);
    const RING: Gva = Gva(0xffff_ffff_9040_0000);
    const TEXT: Gva = Gva(0xffff_ffff_8100_0000);

    /// The nop of an ftrace call, and `push rbp` behind the nop.
    fn traced() -> Jumped {
        let push = decode(&[0x55], TEXT.wrapping_add(5)).expect("an instruction");
        let nop = decode(&[0x0f, 0x1f, 0x44, 0, 0], TEXT).expect("an instruction");
        Jumped::new(nop, Some(push)).expect("one behind the other")
    }

    #[test]
    fn instructions_of_a_detour_have_their_place_and_pushed_bytes() {
        let jumped = traced();
        let record = Work {
            filter: None,
            does: Does::Record {
                ring: RING,
                part_number: 1,
                of: Of::Hit,
                dropped: None,
            },
            processor: Processor {
                number: Some(0x1_fb80),
                task: None,
                fields: None,
            },
            plant: 0xee,
        };
        let code = assemble(&jumped, &[record, record], ENTRY).expect("near");
        let laid = Laid::detour(&jumped, ENTRY, code.bytes.len(), code.displaced);
        let at = |at: Gva| {
            let found = laid.displaced_at(&code.bytes, at)?;
            Some((found.ip.0 - TEXT.0, found.pushed_bytes))
        };
        assert_eq!(at(ENTRY), Some((0, 0)));
        assert_eq!(at(ENTRY.wrapping_add(1)), Some((0, 8)));
        assert!(laid.is_in_front(ENTRY) && !laid.is_in_front(code.displaced));
        // The middle of an instruction.
        assert_eq!(at(code.displaced.wrapping_add(1)), None);
        let displaced = [0, 5, 6].map(|offset| at(code.displaced.wrapping_add(offset)));
        assert_eq!(displaced, [Some((0, 0)), Some((5, 0)), Some((6, 0))]);
        for exit in code.exits.iter().flatten() {
            assert_eq!(at(exit.at), Some((0, 0)));
            assert_eq!(at(exit.on), Some((0, 0)));
            // `popfq` is in front of the exit.
            assert_eq!(at(Gva(exit.at.0 - 1)), Some((0, 8)));
        }
        let all = boundaries(&code.bytes, ENTRY).map_while(Result::ok);
        let deepest = all
            .filter_map(|decoded| at(decoded.at()))
            .map(|(_, pushed)| pushed);
        assert_eq!(deepest.max(), Some(32));
    }

    #[test]
    fn copy_stands_for_the_original_and_then_for_the_next_instruction() {
        let push = decode(&[0x55], TEXT).expect("an instruction");
        let code = [0x55, 0xe9, 0, 0, 0, 0xf0];
        let laid = Laid::copy(&push, ENTRY, code.len());
        let mut all = AllLaid::default();
        all.keep(laid);
        assert!(!laid.is_in_front(ENTRY));
        assert_eq!(all.holding(ENTRY.wrapping_add(5)), Some(laid));
        assert_eq!(all.holding(ENTRY.wrapping_add(6)), None);
        assert_eq!(all.holding(Gva(ENTRY.0 - 1)), None);
        let at = |offset| laid.displaced_at(&code, ENTRY.wrapping_add(offset));
        let at = |offset| at(offset).map(|found| (found.ip, found.pushed_bytes));
        assert_eq!(at(0), Some((TEXT, 0)));
        assert_eq!(at(1), Some((TEXT.wrapping_add(1), 0)));
    }
}
