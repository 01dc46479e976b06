//! A bound on the work caused by hostile tables.

/// Names stepped over, and places looked at, in all attempts together. A kernel has 200 000 names
/// and they are walked a few times.
const MAX_STEPS: u64 = 32_000_000;

/// The number of steps left.
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Budget {
    pub(super) const fn new() -> Self {
        Self(MAX_STEPS)
    }

    /// Takes one step; `None` if no step is left.
    pub(super) fn step(&mut self) -> Option<()> {
        self.0 = self.0.checked_sub(1)?;
        Some(())
    }
}
