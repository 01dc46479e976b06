//! The counter of a mark, at an instruction that reads the counter: a program passes the marks of a counter only while it is not 0.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use address::{Gpa, Gva};

use crate::registry::{Missed, Probe};

/// The counter of probed marks that an instruction reads.
#[derive(Clone, Debug)]
pub(crate) struct ReadCounter {
    /// The address in the program.
    pub(crate) at: Gva,
    /// The probes at the marks.
    pub(crate) probes: Vec<Arc<Probe>>,
}

impl ReadCounter {
    /// Counts for each probe that the program may have read 0, and not have passed the mark.
    pub(crate) fn miss(&self) {
        for probe in &self.probes {
            probe.counters.miss(Missed::Unprotected);
        }
    }
}

/// A counter of marks that the present instruction finds raised, although memory has 0.
#[derive(Debug)]
pub(crate) struct RaisedCounter {
    at: Gpa,
    was_read: AtomicBool,
}

impl RaisedCounter {
    pub(crate) const fn new(at: Gpa) -> Self {
        Self {
            at,
            was_read: AtomicBool::new(false),
        }
    }

    /// Whether the instruction has read the counter.
    pub(crate) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }

    /// Makes the counter 1 in `bytes`, which were read at `gpa`, if it is 0 there.
    pub(crate) fn raise(&self, gpa: Gpa, bytes: &mut [u8]) {
        let at = usize::try_from(self.at.0.wrapping_sub(gpa.0)).unwrap_or(usize::MAX);
        let Some(counter) = bytes.get_mut(at..).filter(|bytes| !bytes.is_empty()) else {
            return;
        };
        self.was_read.store(true, Ordering::Relaxed);
        // The counter is a `short`.
        if counter.iter().take(2).all(|byte| *byte == 0) {
            counter[0] = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTER: Gpa = Gpa(0x1004);

    /// What `bytes`, read at `gpa`, become, and whether the counter was read.
    fn raised<const LEN: usize>(gpa: u64, mut bytes: [u8; LEN]) -> ([u8; LEN], bool) {
        let counter = RaisedCounter::new(COUNTER);
        counter.raise(Gpa(gpa), &mut bytes);
        (bytes, counter.was_read())
    }

    #[test]
    fn counter_that_is_0_reads_as_1() {
        assert_eq!(raised(0x1004, [0, 0]), ([1, 0], true));
        assert_eq!(raised(0x1004, [0]), ([1], true));
        assert_eq!(raised(0x1002, [0, 0, 0, 0, 5]), ([0, 0, 1, 0, 5], true));
    }

    #[test]
    fn counter_that_the_program_has_raised_reads_as_it_is() {
        assert_eq!(raised(0x1004, [2, 0]), ([2, 0], true));
        assert_eq!(raised(0x1004, [0, 1]), ([0, 1], true));
    }

    #[test]
    fn other_bytes_are_not_raised() {
        assert_eq!(raised(0x1005, [0]), ([0], false));
        assert_eq!(raised(0x1000, [0; 4]), ([0; 4], false));
        assert_eq!(raised(0, [0; 2]), ([0; 2], false));
    }
}
