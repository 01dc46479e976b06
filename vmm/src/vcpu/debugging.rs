//! Debug exits: what a vCPU is set up for, which of it an exit is, and the debug exceptions that are the guest's own.
//!
//! While debug registers of ours are in force, KVM hands every debug exception to the host. Those that are none of ours go
//! back to the guest as the processor would have delivered them.

use vm_memory::{Bytes, GuestAddress};

use super::stopped::{Exception, HardwareBreakpoints, RFLAGS_RF, StoppedVcpu, VcpuError};
use crate::kvm::Int1Delivery;

/// DR6: debug registers that fired.
const DR6_FIRED: u64 = 0xf;
/// DR6: causes that no debug register of ours has. Access to a debug register while DR7.GD is set; RFLAGS.TF before the
/// instruction; a task switch.
const DR6_ACCESS: u64 = 1 << 13;
const DR6_STEPPED: u64 = 1 << 14;
const DR6_TASK: u64 = 1 << 15;
const DR6_OWN_CAUSES: u64 = DR6_ACCESS | DR6_STEPPED | DR6_TASK;
/// DR6: causes that are told by a clear bit. A locked bus; a transaction.
const DR6_CLEAR_CAUSES: u64 = 1 << 11 | 1 << 16;
/// DR7: any access to a debug register raises a debug exception. Cleared when one is delivered.
const DR7_GD: u64 = 1 << 13;
const RFLAGS_TF: u64 = 1 << 8;

/// No instruction is longer.
const INSTRUCTION_BYTES: usize = 15;
const INT1: u8 = 0xf1;

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
    /// The guest's own: it steps itself, executes `int1`, guards its debug registers.
    Guest,
}

impl Debugging {
    /// Why there was a debug exit at the linear address `pc`.
    ///
    /// Hardware has put the cause into DR6. An SVM that intercepts #DB before it writes DR6 (that of Bochs 2.7) leaves
    /// none there: then it follows from what was asked for.
    ///
    /// A step comes before what fires at the instruction behind it, which is told when that is about to be executed;
    /// bits of registers may be left from earlier, since a processor never clears them.
    pub(super) fn cause(&self, dr6: u64, pc: u64) -> DebugCause {
        if dr6 & DR6_OWN_CAUSES != 0 {
            return DebugCause::Guest;
        }
        let told = dr6 & DR6_FIRED;
        if told != 0 {
            return fired(told);
        }
        let here = (0..4).filter(|&i| self.breakpoints.execute[i] == Some(pc));
        match here.map(|i| 1 << i).sum() {
            0 => DebugCause::Guest,
            registers => fired(registers),
        }
    }
}

fn fired(registers: u64) -> DebugCause {
    #[expect(clippy::cast_possible_truncation, reason = "four bits")]
    let registers = registers as u8;
    DebugCause::Fired(registers)
}

/// The length of the `int1` that these bytes begin with, prefixes included.
fn int1_length(bytes: &[u8]) -> Option<u64> {
    let prefixes = bytes.iter().take_while(|byte| is_prefix(**byte)).count();
    (bytes.get(prefixes) == Some(&INT1)).then_some(prefixes as u64 + 1)
}

/// Legacy prefixes but LOCK, with which `int1` is #UD; and REX.
const fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3)
}

/// DR6 behind a debug exception of the guest's own: from what it was, and from what KVM has reported.
const fn dr6_of_guest(before: u64, reported: u64) -> u64 {
    let kept = (before & !DR6_FIRED) | DR6_CLEAR_CAUSES;
    (kept | reported & DR6_OWN_CAUSES) & (reported | !DR6_CLEAR_CAUSES)
}

impl StoppedVcpu<'_> {
    /// Injects a debug exception that KVM has reported with `dr6` at the linear address `pc`, and that is the guest's own.
    ///
    /// VT-x exits at an `int1`, and the exception's frame leads behind it; SVM exits behind it. On VT-x the cause of a
    /// locked bus is lost on the way: an exit without a cause that is not at an `int1` is dropped. Where the self-test could not
    /// tell which it is, the bytes do: a guest that is given the exception in front of its `int1` executes it for ever.
    pub(super) fn reinject_debug(&mut self, dr6: u64, pc: u64) -> Result<(), VcpuError> {
        let may_step = self.shared.facts.int1 != Int1Delivery::AtInstruction;
        if may_step && dr6 & DR6_STEPPED != 0 && self.is_step_of_kvm()? {
            return Ok(());
        }
        if dr6 & DR6_OWN_CAUSES == 0 && self.shared.facts.int1 != Int1Delivery::AfterInstruction {
            let (bytes, read) = self.instruction_bytes(pc);
            match int1_length(&bytes[..read]) {
                Some(length) => {
                    let mut regs = self.regs()?;
                    regs.rip = regs.rip.wrapping_add(length);
                    regs.rflags &= !RFLAGS_RF;
                    self.set_regs(&regs)?;
                }
                None if self.shared.facts.int1 == Int1Delivery::AtInstruction => return Ok(()),
                None => (),
            }
        }
        // The delivery ends the shadow; VT-x refuses to enter a guest that steps itself with one over the exception.
        self.end_shadow()?;
        let mut registers = self
            .fd
            .get_debug_regs()
            .map_err(self.failed("KVM_GET_DEBUGREGS"))?;
        registers.dr6 = dr6_of_guest(registers.dr6, dr6);
        registers.dr7 &= !DR7_GD;
        self.fd
            .set_debug_regs(&registers)
            .map_err(self.failed("KVM_SET_DEBUGREGS"))?;
        self.inject(Exception::DEBUG)
    }

    /// Whether KVM itself has made the vCPU step: an SVM without virtual NMIs does so over what keeps it from injecting one,
    /// an `iret` for example, and reports the step as if it were the guest's. It has put the guest's own TF back by then. (A
    /// guest's `popf` that ends its own stepping looks the same, if an NMI comes just then: its last step is not told.) VT-x
    /// needs no such step.
    fn is_step_of_kvm(&mut self) -> Result<bool, VcpuError> {
        let steps_itself = self.regs()?.rflags & RFLAGS_TF != 0;
        Ok(!steps_itself && self.told_events()?.nmi.pending != 0)
    }

    /// The bytes at a linear address, and how many of them could be read.
    fn instruction_bytes(&self, at: u64) -> ([u8; INSTRUCTION_BYTES], usize) {
        let mut bytes = [0; INSTRUCTION_BYTES];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let found = self.fd.translate_gva(at.wrapping_add(i as u64)).ok();
            let gpa = found.filter(|found| found.valid != 0);
            let read = gpa.map(|found| {
                let gpa = GuestAddress(found.physical_address);
                self.shared.memory.guest().read_obj(gpa)
            });
            match read {
                Some(Ok(read)) => *byte = read,
                _ => return (bytes, i),
            }
            if !is_prefix(*byte) {
                return (bytes, i + 1);
            }
        }
        (bytes, INSTRUCTION_BYTES)
    }
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
        assert_eq!(debugging.cause(UNTOLD, HERE), DebugCause::Guest);
    }

    #[test]
    fn step_and_guarded_register_are_the_guests_own() {
        for own in [DR6_STEPPED, DR6_ACCESS, DR6_TASK] {
            assert_eq!(at_here().cause(UNTOLD | own, HERE), DebugCause::Guest);
            // Left from a register that fired before.
            let left = UNTOLD | own | 2;
            assert_eq!(at_here().cause(left, HERE + 2), DebugCause::Guest);
        }
    }

    #[test]
    fn without_dr6_what_was_asked_for_tells() {
        assert_eq!(at_here().cause(UNTOLD, HERE), DebugCause::Fired(0b1010));
        assert_eq!(at_here().cause(UNTOLD, HERE + 1), DebugCause::Fired(0b100));
        assert_eq!(at_here().cause(UNTOLD, HERE + 2), DebugCause::Guest);
    }

    #[test]
    fn int1_is_as_long_as_its_prefixes_make_it() {
        assert_eq!(int1_length(&[0xf1]), Some(1));
        assert_eq!(int1_length(&[0xf1, 0xf1]), Some(1));
        assert_eq!(int1_length(&[0x66, 0x48, 0xf1]), Some(3));
        assert_eq!(int1_length(&[0xf0, 0xf1]), None);
        assert_eq!(int1_length(&[0x90, 0xf1]), None);
        assert_eq!(int1_length(&[0x66]), None);
        assert_eq!(int1_length(&[]), None);
    }

    #[test]
    fn dr6_of_the_guest_holds_the_cause_and_no_register() {
        assert_eq!(dr6_of_guest(UNTOLD | 3, UNTOLD), UNTOLD);
        assert_eq!(
            dr6_of_guest(UNTOLD, UNTOLD | DR6_STEPPED),
            UNTOLD | DR6_STEPPED
        );
        // A cause stays until the guest clears it; that of a locked bus is a clear bit.
        let stepped = UNTOLD | DR6_STEPPED;
        assert_eq!(dr6_of_guest(stepped, UNTOLD), stepped);
        assert_eq!(
            dr6_of_guest(UNTOLD, UNTOLD & !(1 << 11)),
            UNTOLD & !(1 << 11)
        );
    }
}
