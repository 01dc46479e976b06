//! The memory that interpreted code of the guest works with: guest memory, and on top of it the bytes that the code has written.
//!
//! A range of addresses is private: the guest has no memory there, and reads as zeros until the code writes. Linux keeps this range free for
//! hypervisors.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use address::Gva;

use super::calls::ReadCode;
use super::lines::Lines;

/// The first private byte.
pub(super) const PRIVATE: Gva = Gva(0xffff_8000_6d79_0000);
pub(super) const PRIVATE_BYTES: u64 = 0x4000;
/// String instructions read and write up to 64 KiB at once.
const MAX_READ_BYTES: usize = 1 << 16;
/// The bytes of all writes, those to the same place included.
const MAX_STORED_BYTES: usize = 1 << 16;
const WORD_BYTES: usize = 8;

/// The memory of an interpreter.
pub(super) struct Scratch<'r> {
    /// The words with bytes that the code has written, by their aligned addresses.
    words: BTreeMap<u64, Word>,
    max_words: usize,
    /// The bytes of data that the code may still read, and write.
    left: usize,
    left_to_store: usize,
    /// Whether an access was refused because of a limit.
    is_spent: bool,
    guest: Lines<'r>,
}

/// Eight bytes, of which some are written.
#[derive(Clone, Copy, Default)]
struct Word {
    bytes: [u8; WORD_BYTES],
    is_written: [bool; WORD_BYTES],
}

impl<'r> Scratch<'r> {
    /// Memory without a written byte. The code may write at most `max_written_bytes`.
    pub(super) fn new(read: ReadCode<'r>, max_written_bytes: usize) -> Self {
        Self {
            words: BTreeMap::new(),
            max_words: max_written_bytes / WORD_BYTES,
            left: MAX_READ_BYTES,
            left_to_store: MAX_STORED_BYTES,
            is_spent: false,
            guest: Lines::new(read),
        }
    }

    /// Whether an access was refused because the code had read or written too much.
    pub(super) const fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Reads code of the guest, without the written bytes; `false` if it cannot be read.
    pub(super) fn read_code(&mut self, at: Gva, buf: &mut [u8]) -> bool {
        self.guest.read_code(at, buf)
    }

    /// Reads memory as the code has left it; `false` if it cannot be read, or the code has read too much.
    pub(super) fn load(&mut self, at: Gva, buf: &mut [u8]) -> bool {
        let Some(left) = self.left.checked_sub(buf.len()) else {
            self.is_spent = true;
            return false;
        };
        self.left = left;
        self.look(at, buf)
    }

    /// Reads memory as the code has left it, for a reader other than the code: without a limit.
    pub(super) fn look(&mut self, at: Gva, buf: &mut [u8]) -> bool {
        if self.lay_over(at, buf) == buf.len() {
            return true;
        }
        if is_private(at, buf.len()) {
            buf.fill(0);
        } else if !self.guest.read_data(at, buf) {
            return false;
        }
        self.lay_over(at, buf);
        true
    }

    /// Writes memory; `false` if the code has written too much.
    pub(super) fn store(&mut self, at: Gva, bytes: &[u8]) -> bool {
        let Some(left) = self.left_to_store.checked_sub(bytes.len()) else {
            self.is_spent = true;
            return false;
        };
        self.left_to_store = left;
        for (number, byte) in (0..).zip(bytes) {
            let at = at.0.wrapping_add(number);
            let (word, index) = place(at);
            if self.words.len() == self.max_words && !self.words.contains_key(&word) {
                self.is_spent = true;
                return false;
            }
            let word = self.words.entry(word).or_default();
            if let (Some(held), Some(is_written)) =
                (word.bytes.get_mut(index), word.is_written.get_mut(index))
            {
                (*held, *is_written) = (*byte, true);
            }
        }
        true
    }

    /// Copies the written bytes from `at` on, and returns their number.
    fn lay_over(&self, at: Gva, buf: &mut [u8]) -> usize {
        let Some(end) = at.0.checked_add(buf.len() as u64) else {
            return 0;
        };
        let words = (Included(place(at.0).0), Excluded(end));
        let mut copied = 0;
        for (start, word) in self.words.range(words) {
            for (number, (byte, is_written)) in (0..).zip(word.bytes.iter().zip(word.is_written)) {
                // A word ends at the end of the addresses at the latest.
                let offset = start.wrapping_add(number).checked_sub(at.0);
                let held = offset.and_then(|offset| buf.get_mut(usize::try_from(offset).ok()?));
                if let (Some(held), true) = (held, is_written) {
                    *held = *byte;
                    copied += 1;
                }
            }
        }
        copied
    }
}

/// The aligned address of the word that holds the byte at `at`, and the number of the byte in the word.
fn place(at: u64) -> (u64, usize) {
    let index = at % WORD_BYTES as u64;
    (at - index, usize::try_from(index).unwrap_or(0))
}

fn is_private(at: Gva, len: usize) -> bool {
    let offset = at.offset_from(PRIVATE);
    let end = offset.and_then(|offset| offset.checked_add(len as u64));
    end.is_some_and(|end| end <= PRIVATE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guest memory of 16 bytes at `GUEST`, all ones.
    const GUEST: u64 = 0x1000;

    fn read(at: Gva, buf: &mut [u8]) -> bool {
        let end = at.0.checked_add(buf.len() as u64);
        let is_there = at.0 >= GUEST && end.is_some_and(|end| end <= GUEST + 16);
        buf.fill(0xff);
        is_there
    }

    #[test]
    fn written_bytes_hide_those_of_the_guest() {
        let mut read = read;
        let mut memory = Scratch::new(&mut read, 64);
        assert!(memory.store(Gva(GUEST + 6), &[1, 2, 3, 4]));
        let mut held = [0; 8];
        assert!(memory.load(Gva(GUEST + 4), &mut held));
        assert_eq!(held, [0xff, 0xff, 1, 2, 3, 4, 0xff, 0xff]);
    }

    #[test]
    fn written_bytes_need_no_guest_memory() {
        let mut read = read;
        let mut memory = Scratch::new(&mut read, 64);
        let mut held = [0; 4];
        assert!(!memory.load(Gva(0x9000), &mut held));
        assert!(memory.store(Gva(0x9000), &[5; 4]));
        assert!(memory.load(Gva(0x9000), &mut held));
        assert_eq!(held, [5; 4]);
        assert!(!memory.load(Gva(0x9001), &mut held));
    }

    #[test]
    fn private_bytes_are_zero_before_the_first_write() {
        let mut read = read;
        let mut memory = Scratch::new(&mut read, 64);
        assert!(memory.store(PRIVATE.wrapping_add(1), &[7]));
        let mut held = [9; 3];
        assert!(memory.load(PRIVATE, &mut held));
        assert_eq!(held, [0, 7, 0]);
        let end = PRIVATE.wrapping_add(PRIVATE_BYTES - 1);
        assert!(!memory.load(end, &mut held));
    }

    #[test]
    fn reads_and_writes_have_a_limit() {
        let mut read = read;
        let mut memory = Scratch::new(&mut read, 16);
        assert!(memory.store(PRIVATE, &[1; 16]));
        assert!(memory.store(PRIVATE, &[2; 16]));
        assert!(!memory.store(PRIVATE.wrapping_add(16), &[1]));
        let mut held = vec![0; 0x4000];
        let reads = (0..100).take_while(|_| memory.load(PRIVATE, &mut held));
        assert_eq!(reads.count(), MAX_READ_BYTES / held.len());
    }

    #[test]
    fn writes_to_one_place_have_a_limit() {
        let mut read = read;
        let mut memory = Scratch::new(&mut read, 0x4000);
        let stores = (0..100).take_while(|_| memory.store(PRIVATE, &[1; 0x4000]));
        assert_eq!(stores.count(), MAX_STORED_BYTES / 0x4000);
    }

    #[test]
    fn access_at_the_end_of_the_addresses_is_refused() {
        let mut read = read;
        let mut memory = Scratch::new(&mut read, 16);
        assert!(!memory.load(Gva(u64::MAX - 1), &mut [0; 8]));
        assert!(memory.store(Gva(u64::MAX - 7), &[1; 8]));
        assert!(!memory.load(Gva(u64::MAX - 15), &mut [0; 8]));
        let mut held = [0; 4];
        assert!(memory.load(Gva(u64::MAX - 7), &mut held));
        assert_eq!(held, [1; 4]);
    }
}
