//! Which debug exits a vCPU has been set up for, and which of them one is.

use super::stopped::HardwareBreakpoints;

/// DR6: debug registers that fired.
const DR6_FIRED: u64 = 0xf;

/// What KVM was last told to stop this vCPU for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Debugging {
    pub(super) breakpoints: HardwareBreakpoints,
    /// It runs alone, and interrupts are held back.
    pub(super) alone: bool,
}

/// Why a vCPU left the guest with a debug exception that is no breakpoint instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DebugCause {
    /// Bits 0–3: these debug registers fired.
    Fired(u8),
    /// Nothing that it was set up for.
    Unknown,
}

impl Debugging {
    /// Why there was a debug exit at the linear address `pc`.
    ///
    /// Hardware has put the cause into DR6. An SVM that intercepts #DB before it writes DR6 (that of Bochs 2.7) leaves
    /// none there: then it follows from what was asked for.
    pub(super) fn cause(&self, dr6: u64, pc: u64) -> DebugCause {
        let told = dr6 & DR6_FIRED;
        if told != 0 {
            return fired(told);
        }
        let here = (0..4).filter(|&i| self.breakpoints.execute[i] == Some(pc));
        match here.map(|i| 1 << i).sum() {
            0 => DebugCause::Unknown,
            registers => fired(registers),
        }
    }
}

fn fired(registers: u64) -> DebugCause {
    #[expect(clippy::cast_possible_truncation, reason = "four bits")]
    let registers = registers as u8;
    DebugCause::Fired(registers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u64 = 0xffff_ffff_8100_0000;
    /// Its reserved bits, and no cause.
    const UNTOLD: u64 = 0xffff_0ff0;

    fn at_here() -> Debugging {
        let execute = [None, Some(HERE), Some(HERE + 1), Some(HERE)];
        Debugging {
            breakpoints: HardwareBreakpoints { execute },
            alone: false,
        }
    }

    #[test]
    fn dr6_tells() {
        let debugging = Debugging::default();
        assert_eq!(debugging.cause(UNTOLD | 4, HERE), DebugCause::Fired(4));
        assert_eq!(debugging.cause(UNTOLD, HERE), DebugCause::Unknown);
    }

    #[test]
    fn without_dr6_what_was_asked_for_tells() {
        assert_eq!(at_here().cause(UNTOLD, HERE), DebugCause::Fired(0b1010));
        assert_eq!(at_here().cause(UNTOLD, HERE + 1), DebugCause::Fired(0b100));
        assert_eq!(at_here().cause(UNTOLD, HERE + 2), DebugCause::Unknown);
    }
}
