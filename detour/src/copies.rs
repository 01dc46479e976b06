//! Copies of instructions, each with a jump back behind it.

use std::collections::HashMap;

use address::Gva;
use introspect::insn::{Decoded, MAX_LENGTH_BYTES};
use introspect::optimise::JUMP_BYTES;

use super::DetourError;

const JUMP: u8 = 0xe9;

/// An instruction of the guest, by address and bytes.
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

/// The copies of a region. A copy stays as long as the guest runs: an interrupted thread may be in it at any time.
#[derive(Debug, Default)]
pub(super) struct Copies(HashMap<Original, Gva>);

/// A copy to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewCopy {
    bytes: [u8; MAX_LENGTH_BYTES + JUMP_BYTES],
    len: usize,
}

impl NewCopy {
    /// The length of a copy of `decoded`, in bytes.
    pub(super) fn len(decoded: &Decoded) -> usize {
        decoded.len() + JUMP_BYTES
    }

    /// A copy of `decoded`, to be written at `at`.
    ///
    /// # Errors
    ///
    /// If the original is too far away for the jump back.
    pub(super) fn new(decoded: &Decoded, at: Gva) -> Result<Self, DetourError> {
        let len = Self::len(decoded);
        let behind = at.wrapping_add(len as u64);
        let distance = decoded.next().0.wrapping_sub(behind.0).cast_signed();
        let distance = i32::try_from(distance).map_err(|_| DetourError::TooFar)?;
        let mut bytes = [0; MAX_LENGTH_BYTES + JUMP_BYTES];
        let (copied, jump) = bytes.split_at_mut(decoded.len());
        copied.copy_from_slice(decoded.bytes());
        jump[0] = JUMP;
        jump[1..JUMP_BYTES].copy_from_slice(&distance.to_le_bytes());
        Ok(Self { bytes, len })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Copies {
    pub(super) fn of(&self, decoded: &Decoded) -> Option<Gva> {
        self.0.get(&Original::new(decoded)).copied()
    }

    /// Remembers that a copy of `decoded` has been written at `at`.
    pub(super) fn keep(&mut self, decoded: &Decoded, at: Gva) {
        self.0.insert(Original::new(decoded), at);
    }
}

#[cfg(test)]
mod tests {
    use introspect::insn::decode;

    use super::*;

    const COPY: Gva = Gva(0xffff_ffff_9000_0040);

    fn rdtsc(at: u64) -> Decoded {
        decode(&[0x0f, 0x31], Gva(at)).expect("an instruction")
    }

    #[test]
    fn copy_jumps_back_behind_its_original_from_above_and_below() {
        for at in [0xffff_ffff_8100_0000, 0xffff_ffff_c000_1234] {
            let copy = NewCopy::new(&rdtsc(at), COPY).expect("near enough");
            let copied = decode(copy.bytes(), COPY).expect("the instruction");
            assert_eq!(copied.bytes(), [0x0f, 0x31]);
            let jump = decode(&copy.bytes()[2..], copied.next()).expect("a jump");
            assert_eq!(jump.branch_target(), Some(Gva(at + 2)));
            assert_eq!(copy.bytes().len(), NewCopy::len(&rdtsc(at)));
        }
    }

    #[test]
    fn copies_are_found_by_address_and_bytes() {
        let mut copies = Copies::default();
        let at = 0xffff_ffff_8100_0000;
        assert_eq!(copies.of(&rdtsc(at)), None);
        copies.keep(&rdtsc(at), COPY);
        assert_eq!(copies.of(&rdtsc(at)), Some(COPY));
        assert_eq!(copies.of(&rdtsc(at + 2)), None);
        let cpuid = decode(&[0x0f, 0xa2], Gva(at)).expect("an instruction");
        assert_eq!(copies.of(&cpuid), None);
    }

    #[test]
    fn unreachable_original_has_no_copy() {
        for at in [0x10_0000_0000, 0xffff_ffff_0000_0000] {
            let refused = NewCopy::new(&rdtsc(at), COPY);
            assert!(matches!(refused, Err(DetourError::TooFar)), "{refused:?}");
        }
    }
}
