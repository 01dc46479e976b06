//! The flags before an instruction, and the changes that the instruction will make.

use super::flags;

/// The flags before the instruction and after.
pub(super) struct FlagChanges {
    before: u64,
    after: u64,
    /// RF afterwards.
    resume: bool,
}

impl FlagChanges {
    pub(super) const fn new(before: u64) -> Self {
        Self {
            before,
            after: before,
            resume: false,
        }
    }

    /// The flags before the instruction.
    pub(super) const fn before(&self) -> u64 {
        self.before
    }

    /// Whether `flag` was set before the instruction.
    pub(super) const fn was_set(&self, flag: u64) -> bool {
        self.before & flag != 0
    }

    /// Changes the flags in `which` to their state in `values`.
    pub(super) const fn set(&mut self, which: u64, values: u64) {
        self.after = (self.after & !which) | (values & which);
    }

    /// Sets RF after the instruction to `resume`; other instructions clear RF.
    pub(super) const fn set_resume(&mut self, resume: bool) {
        self.resume = resume;
    }

    /// The flags after the instruction. Completing an instruction clears RF; a set RF suppresses
    /// breakpoints on the instruction.
    pub(super) const fn after(&self) -> u64 {
        self.after & !flags::RESUME | flags::when(self.resume, flags::RESUME)
    }
}
