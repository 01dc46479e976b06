//! The debug setup of a vCPU, and the breakpoints in the setup.

use address::Gva;

/// The breakpoints in the debug registers 0–3, for all privilege levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HardwareBreakpoints {
    /// Linear addresses of execution breakpoints; `None` leaves a register unused.
    pub execute: [Option<Gva>; 4],
}

impl HardwareBreakpoints {
    /// DR7 without bit 10, which is always one.
    pub(super) fn dr7(&self) -> u64 {
        // R/W and LEN bits of an execution breakpoint are all zero; G0–G3 are bits 1, 3, 5, 7.
        (0..4)
            .filter(|&i| self.execute[i].is_some())
            .map(|i| 0b10 << (2 * i))
            .sum()
    }
}

/// The debug setup of a vCPU, as last passed to KVM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Debugging {
    pub(super) breakpoints: HardwareBreakpoints,
    /// The vCPU runs alone, and interrupts are held back.
    pub(super) alone: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dr7_enables_the_registers_that_are_used() {
        let dr7 = |execute| HardwareBreakpoints { execute }.dr7();
        assert_eq!(dr7([None; 4]), 0);
        assert_eq!(dr7([Some(Gva(1)), None, None, None]), 0b10);
        assert_eq!(dr7([None, None, Some(Gva(0)), Some(Gva(2))]), 0b1010_0000);
        // No type or length bits: they are zero for an execution breakpoint.
        assert_eq!(dr7([Some(Gva(1)); 4]), 0b1010_1010);
    }
}
