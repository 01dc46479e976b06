//! Which debug exits a vCPU has been set up for, and which of them one is.

use super::stopped::HardwareBreakpoints;

/// DR6: a debug register fired (bits 0–3), or a single step ended (bit 14).
const DR6_FIRED: u64 = 0xf;
const DR6_STEP: u64 = 1 << 14;

/// What KVM was last told to stop this vCPU for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Debugging {
    pub(super) breakpoints: HardwareBreakpoints,
    pub(super) stepping: bool,
}

/// Why a vCPU left the guest with a debug exception that is no breakpoint instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DebugCause {
    /// Bits 0–3: these debug registers fired.
    Fired(u8),
    /// A single step ended.
    Stepped,
    /// Nothing that it was set up for.
    Unknown,
}

impl Debugging {
    /// Why there was a debug exit at the linear address `pc`.
    ///
    /// Hardware has put the cause into DR6. An SVM that intercepts #DB before it writes DR6 (that of Bochs 2.7) leaves
    /// none there: then it follows from what was asked for, since execution breakpoints are off during a step.
    pub(super) fn cause(&self, dr6: u64, pc: u64) -> DebugCause {
        let told = dr6 & DR6_FIRED;
        if told != 0 {
            return fired(told);
        }
        if dr6 & DR6_STEP != 0 || self.stepping {
            return DebugCause::Stepped;
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

    fn at_here(stepping: bool) -> Debugging {
        let execute = [None, Some(HERE), Some(HERE + 1), Some(HERE)];
        Debugging {
            breakpoints: HardwareBreakpoints { execute },
            stepping,
        }
    }

    #[test]
    fn dr6_tells() {
        let debugging = Debugging::default();
        assert_eq!(debugging.cause(UNTOLD | 4, HERE), DebugCause::Fired(4));
        assert_eq!(debugging.cause(UNTOLD | 1 << 14, HERE), DebugCause::Stepped);
        assert_eq!(debugging.cause(UNTOLD, HERE), DebugCause::Unknown);
    }

    #[test]
    fn without_dr6_what_was_asked_for_tells() {
        assert_eq!(at_here(true).cause(UNTOLD, HERE), DebugCause::Stepped);
        assert_eq!(
            at_here(false).cause(UNTOLD, HERE),
            DebugCause::Fired(0b1010)
        );
        assert_eq!(
            at_here(false).cause(UNTOLD, HERE + 1),
            DebugCause::Fired(0b100)
        );
        assert_eq!(at_here(false).cause(UNTOLD, HERE + 2), DebugCause::Unknown);
    }
}
