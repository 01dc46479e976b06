//! The contents of a core file, piece by piece: bytes, and runs of zeros.

use address::PAGE_LEN;
use introspect::{PhysMemory, Unreadable};

use crate::core_file::Core;

/// The memory that one step reads at most. A step reads zeros, too, so the limit bounds the time of a step.
const STEP_BYTES: usize = 1 << 20;
const ZERO_PAGE: [u8; PAGE_LEN] = [0; PAGE_LEN];

/// A part of the file; the next part follows directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'b> {
    /// Bytes, at most a megabyte.
    Bytes(&'b [u8]),
    /// Zeros.
    Zeros(u64),
}

/// A cursor in a core file.
#[derive(Debug)]
pub struct Pieces {
    core: Core,
    /// The number of the segment; `None` in front of the head.
    segment: Option<usize>,
    /// The bytes of the segment that are done.
    done: u64,
    buffer: Vec<u8>,
}

impl Pieces {
    /// The pieces of `core`, from the first byte on.
    #[must_use]
    pub fn new(core: Core) -> Self {
        Self {
            core,
            segment: None,
            done: 0,
            buffer: vec![0; STEP_BYTES],
        }
    }

    /// The size of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.core.bytes()
    }

    /// Passes the next pieces to `take`, at most a megabyte of the file. Returns `false` at the end of the file.
    ///
    /// # Errors
    ///
    /// If a range of RAM cannot be read.
    pub fn step(
        &mut self,
        memory: &dyn PhysMemory,
        mut take: impl FnMut(Piece<'_>),
    ) -> Result<bool, Unreadable> {
        let Some(number) = self.segment else {
            take(Piece::Bytes(self.core.head()));
            self.segment = Some(0);
            return Ok(true);
        };
        let Some(segment) = self.core.segments.get(number) else {
            return Ok(false);
        };
        let left = usize::try_from(segment.bytes - self.done).unwrap_or(usize::MAX);
        let here = &mut self.buffer[..left.min(STEP_BYTES)];
        memory.read(segment.gpa.wrapping_add(self.done), here)?;
        self.done += here.len() as u64;
        if self.done == segment.bytes {
            (self.segment, self.done) = (Some(number + 1), 0);
        }
        split(here, take);
        Ok(true)
    }
}

/// Passes the runs of zero pages and the runs of other pages in `bytes` to `take`.
fn split(mut bytes: &[u8], mut take: impl FnMut(Piece<'_>)) {
    let is_zero = |page: &[u8]| page == &ZERO_PAGE[..page.len()];
    while let Some(first) = bytes.chunks(ZERO_PAGE.len()).next() {
        let is_run_of_zeros = is_zero(first);
        let pages = bytes.chunks(ZERO_PAGE.len());
        let run = pages.take_while(|page| is_zero(page) == is_run_of_zeros);
        let (run, rest) = bytes.split_at(run.map(<[u8]>::len).sum());
        take(match is_run_of_zeros {
            true => Piece::Zeros(run.len() as u64),
            false => Piece::Bytes(run),
        });
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use address::Gpa;
    use introspect::FlatMemory;

    use super::*;
    use crate::core_file::Guest;

    /// Memory with a byte in the second page, and one in the last page.
    fn memory(bytes: usize) -> FlatMemory {
        let mut memory = FlatMemory::zeroed(bytes);
        for at in [0x1fff, bytes as u64 - 1] {
            memory.write(Gpa(at), &[7]).expect("in memory");
        }
        memory
    }

    fn core(bytes: usize) -> Core {
        Core::new(&Guest {
            ram: vec![Gpa(0)..Gpa(bytes as u64)],
            ..Guest::default()
        })
    }

    #[test]
    fn pieces_are_the_head_and_all_of_memory_with_zero_pages_apart() {
        let memory = memory(STEP_BYTES + 0x3000);
        let mut pieces = Pieces::new(core(memory.bytes().len()));
        let (mut file, mut zeros) = (Vec::new(), Vec::new());
        let mut step = |pieces: &mut Pieces| {
            pieces.step(&memory, |piece| match piece {
                Piece::Bytes(bytes) => file.extend(bytes),
                Piece::Zeros(count) => {
                    zeros.push(count);
                    file.resize(file.len() + usize::try_from(count).expect("small"), 0);
                }
            })
        };
        while step(&mut pieces).expect("all is memory") {}
        assert_eq!(file.len() as u64, pieces.bytes());
        assert!(file.ends_with(memory.bytes()));
        let step = STEP_BYTES as u64;
        assert_eq!(zeros, [0x1000, step - 0x2000, 0x2000]);
    }

    #[test]
    fn range_without_memory_is_an_error() {
        let memory = memory(0x4000);
        let mut pieces = Pieces::new(core(0x5000));
        pieces.step(&memory, |_| ()).expect("the head");
        let error = pieces.step(&memory, |_| ()).expect_err("too short");
        assert_eq!((error.gpa, error.len), (Gpa(0), 0x5000));
    }
}
