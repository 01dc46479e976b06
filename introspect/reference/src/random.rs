//! Random numbers, the same in every run.

/// A xorshift generator. The state 0 is not left.
#[derive(Clone, Debug)]
pub struct Random(
    /// The state.
    pub u64,
);

impl Random {
    /// The next number.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would need a check for its end"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    /// `true` in one of `chances` cases.
    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }

    /// A value as instructions like least: edges of all widths as often as anything else.
    pub fn value(&mut self) -> u64 {
        let edges = [
            0,
            1,
            2,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0xffff,
            0x7fff_ffff,
            0x8000_0000,
        ];
        let edge = match self.below(14) {
            11 => 0xffff_ffff,
            12 => 1 << 63,
            13 => u64::MAX >> 1,
            index => edges[usize::try_from(index).unwrap_or(0)],
        };
        match self.below(8) {
            0 | 1 => edge,
            2 => !edge,
            3 => edge | self.next() << 32,
            4 => self.next() >> self.below(64),
            _ => self.next(),
        }
    }
}
