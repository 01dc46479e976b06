//! Copies of instructions, each with a jump back behind it.

use std::collections::HashMap;

use introspect::Gva;
use introspect::insn::{Decoded, MAX_LENGTH_BYTES};

use super::{DetourError, Leaves, WayOut};

/// A cache line: a copy never shares one with another that is being written.
pub(super) const COPY_BYTES: usize = 64;
/// `jmp rel32`.
const JUMP_BYTES: usize = 5;
const JUMP: u8 = 0xe9;

/// An instruction of the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Original {
    at: Gva,
    bytes: [u8; MAX_LENGTH_BYTES],
    len: usize,
}

impl Original {
    fn new(decoded: &Decoded) -> Self {
        let mut bytes = [0; MAX_LENGTH_BYTES];
        bytes[..decoded.len()].copy_from_slice(decoded.bytes());
        Self {
            at: decoded.at(),
            bytes,
            len: decoded.len(),
        }
    }
}

/// The copies of a region. One that has been made stays until the whole region is evacuated: an interrupted thread may
/// be in it at any time.
#[derive(Debug)]
pub(super) struct Copies {
    base: Gva,
    room: usize,
    made: HashMap<Original, Gva>,
}

/// A copy to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewCopy {
    /// From the beginning of the region.
    pub(super) offset: usize,
    bytes: [u8; MAX_LENGTH_BYTES + JUMP_BYTES],
    len: usize,
}

impl NewCopy {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Copies {
    /// For a region that begins at `base` and has `bytes` of code.
    pub(super) fn new(base: Gva, bytes: usize) -> Self {
        Self {
            base,
            room: bytes / COPY_BYTES,
            made: HashMap::new(),
        }
    }

    pub(super) fn of(&self, decoded: &Decoded) -> Option<Gva> {
        self.made.get(&Original::new(decoded)).copied()
    }

    /// The addresses of the instructions that there are copies of.
    pub(super) fn originals(&self) -> impl Iterator<Item = Gva> {
        self.made.keys().map(|original| original.at)
    }

    /// For each address at which a thread can be in a copy, where it would be without it.
    pub(super) fn ways_out(&self) -> impl Iterator<Item = (Gva, WayOut)> {
        self.made.iter().flat_map(|(original, &copy)| {
            let len = original.len as u64;
            let behind = original.at.wrapping_add(len);
            // Who comes to a copy has been counted.
            [
                (copy, WayOut::plain(original.at, Leaves::RunningOn)),
                (copy.wrapping_add(len), WayOut::plain(behind, Leaves::Moved)),
            ]
        })
    }

    /// Makes a copy; `None` if there is one already.
    pub(super) fn make(&mut self, decoded: &Decoded) -> Result<Option<NewCopy>, DetourError> {
        let original = Original::new(decoded);
        if self.made.contains_key(&original) {
            return Ok(None);
        }
        let index = self.made.len();
        if index >= self.room {
            return Err(DetourError::Full(self.room));
        }
        let offset = index * COPY_BYTES;
        let at = self.base.wrapping_add(offset as u64);
        let len = original.len + JUMP_BYTES;
        let behind = at.wrapping_add(len as u64);
        let distance = decoded.next().0.wrapping_sub(behind.0).cast_signed();
        let distance = i32::try_from(distance).map_err(|_| DetourError::TooFar)?;
        let mut bytes = [0; MAX_LENGTH_BYTES + JUMP_BYTES];
        bytes[..original.len].copy_from_slice(decoded.bytes());
        bytes[original.len] = JUMP;
        bytes[original.len + 1..len].copy_from_slice(&distance.to_le_bytes());
        self.made.insert(original, at);
        Ok(Some(NewCopy { offset, bytes, len }))
    }
}

#[cfg(test)]
mod tests {
    use introspect::insn::decode;

    use super::*;

    const BASE: Gva = Gva(0xffff_ffff_9000_0000);

    fn rdtsc(at: u64) -> Decoded {
        decode(&[0x0f, 0x31], Gva(at)).expect("an instruction")
    }

    #[test]
    fn a_copy_jumps_back_behind_its_original_from_above_and_below() {
        let mut copies = Copies::new(BASE, 4096);
        for (i, at) in [0xffff_ffff_8100_0000, 0xffff_ffff_c000_1234]
            .into_iter()
            .enumerate()
        {
            let copy = copies.make(&rdtsc(at)).expect("room").expect("a new one");
            assert_eq!(copy.offset, i * COPY_BYTES);
            let here = BASE.wrapping_add(copy.offset as u64);
            let copied = decode(copy.bytes(), here).expect("the instruction");
            assert_eq!(copied.bytes(), [0x0f, 0x31]);
            let jump = decode(&copy.bytes()[2..], copied.next()).expect("a jump");
            assert_eq!(jump.branch_target(), Some(Gva(at + 2)));
            assert_eq!(copy.bytes().len(), 7);
            assert_eq!(copies.of(&rdtsc(at)), Some(here));
        }
    }

    #[test]
    fn an_original_has_one_copy_and_what_has_none_is_told() {
        let mut copies = Copies::new(BASE, 2 * COPY_BYTES);
        let at = |index: u64| 0xffff_ffff_8100_0000 + 16 * index;
        assert!(copies.make(&rdtsc(at(0))).expect("room").is_some());
        assert!(copies.make(&rdtsc(at(0))).expect("room").is_none());
        assert!(copies.make(&rdtsc(at(1))).expect("room").is_some());
        let full = copies.make(&rdtsc(at(2)));
        assert!(matches!(full, Err(DetourError::Full(2))), "{full:?}");
        assert!(copies.make(&rdtsc(at(1))).expect("made").is_none());
        assert_eq!(copies.of(&rdtsc(at(2))), None);
    }

    #[test]
    fn what_a_jump_does_not_reach_has_no_copy() {
        let mut copies = Copies::new(BASE, 4096);
        for at in [0x10_0000_0000, 0xffff_ffff_0000_0000] {
            let refused = copies.make(&rdtsc(at));
            assert!(matches!(refused, Err(DetourError::TooFar)), "{refused:?}");
        }
        assert_eq!(copies.originals().count(), 0);
    }

    #[test]
    fn there_are_two_ways_out_of_a_copy() {
        let mut copies = Copies::new(BASE, 4096);
        copies.make(&rdtsc(0xffff_ffff_8100_0000)).expect("room");
        let mut ways: Vec<_> = copies.ways_out().collect();
        ways.sort_unstable_by_key(|(at, _)| *at);
        let original = Gva(0xffff_ffff_8100_0000);
        let behind = WayOut::plain(original.wrapping_add(2), Leaves::Moved);
        let copy = (BASE, WayOut::plain(original, Leaves::RunningOn));
        assert_eq!(ways, [copy, (BASE.wrapping_add(2), behind)]);
    }
}
