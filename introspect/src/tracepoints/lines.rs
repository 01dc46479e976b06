//! The guest's code as the interpreter fetches it: each line of 64 bytes once.
//!
//! Every read of guest memory walks the guest's page tables, and a record takes some hundred instructions in a few dozen lines. Data is read
//! each time: code that waits for another vCPU reads the same word again.

use std::collections::BTreeMap;

use address::Gva;

use super::calls::ReadCode;

const LINE_BYTES: usize = 64;
/// Code may run through any number of lines. Lines beyond this number are read each time.
const MAX_LINES: usize = 1024;

/// Guest memory, and the lines of code already read, by their aligned addresses.
pub(super) struct Lines<'r> {
    lines: BTreeMap<u64, [u8; LINE_BYTES]>,
    read: ReadCode<'r>,
}

impl<'r> Lines<'r> {
    pub(super) fn new(read: ReadCode<'r>) -> Self {
        Self {
            lines: BTreeMap::new(),
            read,
        }
    }

    /// Fills the bytes from the address on, as they are now; `false` if they cannot be read.
    pub(super) fn read_data(&mut self, at: Gva, buf: &mut [u8]) -> bool {
        (self.read)(at, buf)
    }

    /// Fills the bytes of code from the address on; `false` if they cannot be read.
    pub(super) fn read_code(&mut self, at: Gva, buf: &mut [u8]) -> bool {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let here = at.0.wrapping_add(done as u64);
            let offset = usize::try_from(here % LINE_BYTES as u64).unwrap_or(0);
            let len = rest.len().min(LINE_BYTES - offset);
            let Some(to) = rest.get_mut(..len) else {
                return false;
            };
            let line = self.line(here - offset as u64).copied();
            match line
                .as_ref()
                .and_then(|line| line.get(offset..offset + len))
            {
                Some(held) => to.copy_from_slice(held),
                // A line that cannot be read as a whole, or one too many.
                None if (self.read)(Gva(here), to) => (),
                None => return false,
            }
            done += len;
        }
        true
    }

    fn line(&mut self, start: u64) -> Option<&[u8; LINE_BYTES]> {
        if !self.lines.contains_key(&start) {
            let mut bytes = [0; LINE_BYTES];
            if self.lines.len() == MAX_LINES || !(self.read)(Gva(start), &mut bytes) {
                return None;
            }
            self.lines.insert(start, bytes);
        }
        self.lines.get(&start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guest memory of three lines, the last of which ends early.
    const GUEST: u64 = 0x1000;
    const GUEST_BYTES: usize = 2 * LINE_BYTES + 8;

    /// Reads bytes whose values are their offsets, and notes each read.
    fn reader(reads: &mut Vec<(u64, usize)>) -> impl FnMut(Gva, &mut [u8]) -> bool {
        |at, buf| {
            reads.push((at.0, buf.len()));
            let Some(offset) = at.0.checked_sub(GUEST) else {
                return false;
            };
            let offset = usize::try_from(offset).expect("small");
            for (number, byte) in (offset..).zip(buf.iter_mut()) {
                *byte = u8::try_from(number % 256).expect("a byte");
            }
            offset + buf.len() <= GUEST_BYTES
        }
    }

    #[test]
    fn bytes_of_two_lines_are_read_once() {
        let mut reads = Vec::new();
        let mut read = reader(&mut reads);
        let mut lines = Lines::new(&mut read);
        let mut held = [0; 4];
        for _ in 0..3 {
            assert!(lines.read_code(Gva(GUEST + 62), &mut held));
            assert_eq!(held, [62, 63, 64, 65]);
        }
        drop(read);
        let line = LINE_BYTES as u64;
        assert_eq!(reads, [(GUEST, LINE_BYTES), (GUEST + line, LINE_BYTES)]);
    }

    #[test]
    fn data_is_read_each_time() {
        let mut value = 0;
        let mut read = |_: Gva, buf: &mut [u8]| {
            value += 1;
            buf.fill(value);
            true
        };
        let mut lines = Lines::new(&mut read);
        let mut held = [0];
        assert!(lines.read_code(Gva(GUEST), &mut held));
        for value in 2..4 {
            assert!(lines.read_data(Gva(GUEST), &mut held));
            assert_eq!(held, [value]);
        }
    }

    #[test]
    fn bytes_of_a_line_that_ends_early_are_read_by_themselves() {
        let mut reads = Vec::new();
        let mut read = reader(&mut reads);
        let mut lines = Lines::new(&mut read);
        let mut held = [0; 10];
        assert!(lines.read_code(Gva(GUEST + 126), &mut held));
        assert_eq!(held, [126, 127, 128, 129, 130, 131, 132, 133, 134, 135]);
        assert!(!lines.read_code(Gva(GUEST + 127), &mut held));
        assert!(!lines.read_code(Gva(GUEST - 1), &mut held));
        assert!(lines.read_code(Gva(GUEST + 135), &mut held[..1]));
    }

    #[test]
    fn number_of_lines_has_a_limit() {
        let mut reads = 0;
        let mut read = |_: Gva, buf: &mut [u8]| {
            reads += 1;
            buf.fill(7);
            true
        };
        let mut lines = Lines::new(&mut read);
        for number in 0..2 * MAX_LINES {
            let mut held = [0];
            let at = Gva((number * LINE_BYTES) as u64);
            assert!(lines.read_code(at, &mut held));
            assert_eq!(held, [7]);
        }
        assert_eq!(lines.lines.len(), MAX_LINES);
        assert_eq!(reads, 2 * MAX_LINES);
    }

    #[test]
    fn read_past_the_last_address_goes_on_at_the_first() {
        let mut read = |at: Gva, buf: &mut [u8]| {
            buf.fill(if at.0 == 0 { 1 } else { 2 });
            true
        };
        let mut lines = Lines::new(&mut read);
        let mut held = [0; 4];
        assert!(lines.read_code(Gva(u64::MAX - 1), &mut held));
        assert_eq!(held, [2, 2, 1, 1]);
    }
}
