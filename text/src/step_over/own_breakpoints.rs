//! The guest's own breakpoints in debug registers, which the emulator does not raise.

use address::Gva;
use vmm::kvm_debugregs;

/// The kinds of a debug register in DR7.
const EXECUTION: u64 = 0;
const KIND_BITS: u64 = 0b11;

/// The guest's own breakpoints.
#[derive(Clone, Copy, Debug)]
pub struct OwnBreakpoints(kvm_debugregs);

impl OwnBreakpoints {
    /// The breakpoints in the guest's debug registers.
    #[must_use]
    pub const fn new(registers: kvm_debugregs) -> Self {
        Self(registers)
    }

    /// The registers that fire in front of the instruction at `at`, as in DR6: bits 0 to 3.
    #[must_use]
    pub fn at_instruction(&self, at: Gva) -> u64 {
        let dr7 = self.0.dr7;
        let is_enabled = |i: &usize| dr7 >> (2 * i) & 0b11 != 0;
        let is_executed = |i: &usize| dr7 >> (16 + 4 * i) & KIND_BITS == EXECUTION;
        let here = (0..4).filter(|i| self.0.db[*i] == at.0);
        let fires = here.filter(|i| is_enabled(i) && is_executed(i));
        fires.map(|i| 1 << i).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Gva = Gva(0x1000);

    fn breakpoints(dr7: u64) -> OwnBreakpoints {
        OwnBreakpoints::new(kvm_debugregs {
            db: [0x2000, HERE.0, HERE.0, 0x3000],
            dr7,
            ..kvm_debugregs::default()
        })
    }

    #[test]
    fn breakpoint_fires_if_it_is_enabled_for_execution_at_the_address() {
        // DR1 and DR2 locally and globally, DR0 with another address.
        assert_eq!(breakpoints(0x400 | 1 << 2).at_instruction(HERE), 0b010);
        assert_eq!(
            breakpoints(0x400 | 1 << 2 | 1 << 5).at_instruction(HERE),
            0b110
        );
        assert_eq!(breakpoints(0x400 | 1 << 1).at_instruction(HERE), 0);
        assert_eq!(breakpoints(0x400).at_instruction(HERE), 0);
        // DR1 watches writes.
        assert_eq!(breakpoints(1 << 2 | 1 << 20).at_instruction(HERE), 0);
    }
}
