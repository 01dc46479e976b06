//! The limit of the work of one look-up.

use crate::error::LookupError;

/// Steps for each byte of the file's sections. An intact file needs less than one: an entry of a tree, a row or a range has several bytes.
const STEPS_PER_BYTE: u64 = 4;
/// Steps of the smallest file.
const MIN_STEPS: u64 = 1 << 20;
/// Bytes of a string that are compared or copied in one step.
const BYTES_PER_STEP: usize = 16;

/// The steps that a look-up may still take. In a damaged file, small entries may refer to large ranges and strings again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget(u64);

impl Budget {
    /// The budget of a file with sections of `bytes` bytes in total.
    pub(crate) const fn of_bytes(bytes: u64) -> Self {
        Self(
            bytes
                .saturating_mul(STEPS_PER_BYTE)
                .saturating_add(MIN_STEPS),
        )
    }

    /// The steps that were taken from this budget to get `later`.
    pub(crate) const fn since(self, later: Self) -> u64 {
        self.0.saturating_sub(later.0)
    }

    /// Takes `steps` steps.
    pub(crate) fn spend(&mut self, steps: usize) -> Result<(), LookupError> {
        let left = u64::try_from(steps)
            .ok()
            .and_then(|steps| self.0.checked_sub(steps));
        self.0 = left.ok_or(LookupError::TooComplex)?;
        Ok(())
    }

    /// Takes the steps for a string of `len` bytes.
    pub(crate) fn spend_string(&mut self, len: usize) -> Result<(), LookupError> {
        self.spend(len / BYTES_PER_STEP + 1)
    }
}
