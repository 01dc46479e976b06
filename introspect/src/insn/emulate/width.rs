//! Operand sizes, and the cutting and extending of values to an operand size.
//!
//! Values of all sizes are carried as `u64` with the bits above the width clear.

/// The size of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    B1,
    B2,
    B4,
    B8,
}

impl Width {
    /// The width of `bytes` bytes; `None` if no operand has this size.
    pub(super) const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            1 => Some(Self::B1),
            2 => Some(Self::B2),
            4 => Some(Self::B4),
            8 => Some(Self::B8),
            _ => None,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::B1 => 1,
            Self::B2 => 2,
            Self::B4 => 4,
            Self::B8 => 8,
        }
    }

    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::B1 => 8,
            Self::B2 => 16,
            Self::B4 => 32,
            Self::B8 => 64,
        }
    }

    pub(super) const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// The highest bit.
    pub(super) const fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    pub(super) const fn truncate(self, value: u64) -> u64 {
        value & self.mask()
    }

    /// Extends the value, a signed number of this width, to 64 bits.
    pub(super) const fn sign_extend(self, value: u64) -> u64 {
        self.signed(value).cast_unsigned()
    }

    /// The value as a signed number.
    pub(super) const fn signed(self, value: u64) -> i64 {
        let unused = 64 - self.bits();
        (value << unused).cast_signed() >> unused
    }
}
