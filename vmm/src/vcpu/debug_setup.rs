//! The debug setup of a vCPU, and the breakpoints in the setup.

use address::Gva;

/// The number of bytes that a debug register watches; their address is a multiple of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakpointBytes {
    /// 1 byte.
    One,
    /// 2 bytes.
    Two,
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl BreakpointBytes {
    /// The `len` bytes at `at`, if a debug register can watch them.
    #[must_use]
    pub fn new(at: Gva, len: usize) -> Option<Self> {
        let bytes = match len {
            1 => Self::One,
            2 => Self::Two,
            4 => Self::Four,
            8 => Self::Eight,
            _ => return None,
        };
        at.0.is_multiple_of(len as u64).then_some(bytes)
    }

    /// The number.
    #[must_use]
    pub const fn count(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// The LEN bits of DR7.
    const fn len_bits(self) -> u64 {
        match self {
            Self::One => 0b00,
            Self::Two => 0b01,
            Self::Four => 0b11,
            Self::Eight => 0b10,
        }
    }
}

/// The condition of a debug register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HardwareBreakpoint {
    /// The vCPU is about to execute the instruction at a linear address.
    Execute(Gva),
    /// The vCPU has written to bytes at a linear address.
    Write(Gva, BreakpointBytes),
}

/// The R/W bits of DR7 for data writes; those of an execution breakpoint are zero, as its LEN bits are.
const DATA_WRITES: u64 = 0b01;

impl HardwareBreakpoint {
    /// The linear address.
    #[must_use]
    pub const fn at(self) -> Gva {
        match self {
            Self::Execute(at) | Self::Write(at, _) => at,
        }
    }

    /// Whether the condition is an access to data.
    pub(super) const fn is_of_data(self) -> bool {
        matches!(self, Self::Write(..))
    }

    /// The R/W and LEN bits of DR7, for register 0.
    const fn condition(self) -> u64 {
        match self {
            Self::Execute(_) => 0,
            Self::Write(_, bytes) => (bytes.len_bits() << 2 | DATA_WRITES) << 16,
        }
    }
}

/// The breakpoints in the debug registers 0–3, for all privilege levels; `None` leaves a register unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HardwareBreakpoints(pub [Option<HardwareBreakpoint>; 4]);

impl HardwareBreakpoints {
    /// DR7 without bit 10, which is always one.
    pub(super) fn dr7(&self) -> u64 {
        // G0–G3 are bits 1, 3, 5, 7.
        let used = (0..4).filter_map(|i| Some((i, self.0[i]?)));
        used.map(|(i, breakpoint)| 0b10 << (2 * i) | breakpoint.condition() << (4 * i))
            .sum()
    }

    /// The registers for execution, bits 0–3, that have the address `at`.
    pub(super) fn executing(&self, at: Gva) -> u64 {
        self.bits(|breakpoint| breakpoint == HardwareBreakpoint::Execute(at))
    }

    /// The registers for data, bits 0–3.
    pub(super) fn of_data(&self) -> u64 {
        self.bits(HardwareBreakpoint::is_of_data)
    }

    fn bits(&self, is_meant: impl Fn(HardwareBreakpoint) -> bool) -> u64 {
        let meant = (0..4).filter(|&i| self.0[i].is_some_and(&is_meant));
        meant.map(|i| 1 << i).sum()
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
        let dr7 = |execute: [Option<Gva>; 4]| {
            HardwareBreakpoints(execute.map(|at| at.map(HardwareBreakpoint::Execute))).dr7()
        };
        assert_eq!(dr7([None; 4]), 0);
        assert_eq!(dr7([Some(Gva(1)), None, None, None]), 0b10);
        assert_eq!(dr7([None, None, Some(Gva(0)), Some(Gva(2))]), 0b1010_0000);
        // No type or length bits: they are zero for an execution breakpoint.
        assert_eq!(dr7([Some(Gva(1)); 4]), 0b1010_1010);
    }

    #[test]
    fn dr7_has_type_and_length_of_data_breakpoints() {
        let write = |at, len| {
            let bytes = BreakpointBytes::new(Gva(at), len).expect("bytes");
            Some(HardwareBreakpoint::Write(Gva(at), bytes))
        };
        let all = [write(1, 1), write(2, 2), write(4, 4), write(8, 8)];
        assert_eq!(HardwareBreakpoints(all).dr7(), 0x9d51_00aa);
        let mixed = [
            None,
            Some(HardwareBreakpoint::Execute(Gva(7))),
            None,
            all[3],
        ];
        let mixed = HardwareBreakpoints(mixed);
        assert_eq!(mixed.dr7(), 0x9000_0088);
        assert_eq!((mixed.executing(Gva(7)), mixed.executing(Gva(8))), (2, 0));
        assert_eq!(mixed.of_data(), 8);
    }

    #[test]
    fn debug_register_watches_aligned_powers_of_two_up_to_eight() {
        let watches = |at, len| BreakpointBytes::new(Gva(at), len).is_some();
        assert!(watches(0x1003, 1) && watches(0x1002, 2) && watches(0x1008, 8));
        assert!(!watches(0x1001, 2) && !watches(0x1004, 8));
        assert!(!watches(0x1000, 0) && !watches(0x1000, 3) && !watches(0x1000, 16));
    }
}
