//! Debug exits: the cause of an exit, and the guest's own debug exceptions.
//!
//! While debug registers of the VMM are in force, KVM passes every debug exception to the host. The VMM reinjects the guest's
//! own debug exceptions as the processor would have delivered them.

use address::Gva;
use vm_memory::{Bytes, GuestAddress};

use super::debug_setup::Debugging;
use super::error::VcpuError;
use super::exception::Exception;
use super::registers::VcpuRegisters;
use super::stopped::{RFLAGS_RF, StoppedVcpu};
use crate::kvm::Int1Delivery;

/// DR6: debug registers that fired.
const DR6_FIRED: u64 = 0xf;
/// DR6: causes other than a debug register of the VMM. Access to a debug register while DR7.GD is set; RFLAGS.TF before the
/// instruction; a task switch.
const DR6_ACCESS: u64 = 1 << 13;
const DR6_STEPPED: u64 = 1 << 14;
const DR6_TASK: u64 = 1 << 15;
const DR6_OWN_CAUSES: u64 = DR6_ACCESS | DR6_STEPPED | DR6_TASK;
/// DR6: causes reported by a clear bit. A bus lock; a transaction.
const DR6_CLEAR_CAUSES: u64 = 1 << 11 | 1 << 16;
/// DR7: any access to a debug register raises a debug exception. The delivery clears the bit.
const DR7_GD: u64 = 1 << 13;
const RFLAGS_TF: u64 = 1 << 8;

/// Largest length of an instruction.
const INSTRUCTION_BYTES: usize = 15;
const INT1: u8 = 0xf1;

/// The cause of a debug exit other than a breakpoint instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DebugCause {
    /// Bits 0–3: these debug registers fired, for instructions and for data.
    Fired { fired: u8, written: u8 },
    /// The guest itself: single-stepping, an `int1`, or guarded debug registers. Debug registers for data may have fired before, bits 0–3.
    Guest { written: u8 },
}

impl Debugging {
    /// The cause of a debug exit at the linear address `pc`.
    ///
    /// Hardware has put the cause into DR6. An SVM that intercepts #DB before writing DR6 (the SVM of Bochs 2.7) leaves no
    /// cause in DR6: the VMM's breakpoints at `pc` then decide.
    ///
    /// A step comes before a breakpoint at the next instruction, which fires when the next instruction is about to be
    /// executed. Bits of fired registers may be left from earlier exceptions, since a processor never clears them: KVM clears them at
    /// each entry while the VMM uses debug registers for data, and otherwise they count for nothing.
    pub(super) fn cause(&self, dr6: u64, pc: Gva) -> DebugCause {
        let told = dr6 & DR6_FIRED;
        if dr6 & DR6_OWN_CAUSES != 0 {
            let written = registers(told & self.breakpoints.of_data());
            return DebugCause::Guest { written };
        }
        let of_data = self.breakpoints.of_data();
        let fired = match told {
            0 => self.breakpoints.executing(pc),
            told => told,
        };
        match fired {
            0 => DebugCause::Guest { written: 0 },
            fired => DebugCause::Fired {
                fired: registers(fired & !of_data),
                written: registers(fired & of_data),
            },
        }
    }
}

const fn registers(bits: u64) -> u8 {
    (bits & DR6_FIRED) as u8
}

/// The length of an `int1` at the start of `bytes`, including prefixes.
fn int1_length(bytes: &[u8]) -> Option<u64> {
    let prefixes = bytes.iter().take_while(|byte| is_prefix(**byte)).count();
    (bytes.get(prefixes) == Some(&INT1)).then_some(prefixes as u64 + 1)
}

/// Legacy prefixes except LOCK, and REX. `int1` with LOCK raises #UD.
const fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3)
}

/// DR6 after a debug exception of the guest itself, computed from DR6 `before` and from the DR6 `reported` by KVM.
const fn dr6_of_guest(before: u64, reported: u64) -> u64 {
    let kept = (before & !DR6_FIRED) | DR6_CLEAR_CAUSES;
    (kept | reported & DR6_OWN_CAUSES) & (reported | !DR6_CLEAR_CAUSES)
}

/// DR6 after the guest's own debug registers in `fired` have fired, computed from DR6 `before`. Other causes stay until the guest clears them.
const fn dr6_of_own_breakpoint(before: u64, fired: u64) -> u64 {
    (before & !DR6_FIRED) | DR6_CLEAR_CAUSES | fired & DR6_FIRED
}

impl StoppedVcpu<'_> {
    /// Injects the guest's own debug exception, reported by KVM with `dr6` at the linear address `pc`.
    ///
    /// VT-x exits at an `int1`, and the RIP in the exception's frame is behind the `int1`. SVM exits behind the `int1`. On VT-x
    /// the cause of a bus lock gets lost: an exit without a cause and without an `int1` at RIP is dropped. If the self-test
    /// could not find out where the host exits, the bytes at `pc` decide. A guest that takes the exception in front of its
    /// `int1` would execute the `int1` for ever.
    pub(super) fn reinject_debug(&mut self, dr6: u64, pc: Gva) -> Result<(), VcpuError> {
        let may_step = self.shared.facts.int1 != Int1Delivery::AtInstruction;
        if may_step && dr6 & DR6_STEPPED != 0 && is_step_of_kvm(&mut self.registers)? {
            return Ok(());
        }
        if dr6 & DR6_OWN_CAUSES == 0 && self.shared.facts.int1 != Int1Delivery::AfterInstruction {
            let (bytes, read) = self.instruction_bytes(pc);
            match int1_length(&bytes[..read]) {
                Some(length) => {
                    let mut regs = self.registers.regs()?;
                    regs.rip = regs.rip.wrapping_add(length);
                    regs.rflags &= !RFLAGS_RF;
                    self.registers.set_regs(&regs)?;
                }
                None if self.shared.facts.int1 == Int1Delivery::AtInstruction => return Ok(()),
                None => (),
            }
        }
        // The delivery ends the interrupt shadow. If the guest single-steps, VT-x refuses an entry with a shadow over the
        // exception.
        self.registers.end_shadow()?;
        let before = self.registers.debug_registers()?.dr6;
        self.inject_debug(dr6_of_guest(before, dr6))
    }

    /// Injects #DB in front of the instruction at RIP, as if the guest's own debug registers in `fired`, bits 0 to 3, had fired.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn inject_own_breakpoint(&mut self, fired: u64) -> Result<(), VcpuError> {
        let before = self.registers.debug_registers()?.dr6;
        self.inject_debug(dr6_of_own_breakpoint(before, fired))
    }

    fn inject_debug(&mut self, dr6: u64) -> Result<(), VcpuError> {
        let mut debug = self.registers.debug_registers()?;
        debug.dr6 = dr6;
        debug.dr7 &= !DR7_GD;
        self.registers.set_debug_registers(&debug)?;
        self.inject(Exception::DEBUG)
    }

    /// Reads the prefixes and the next byte at a linear address. Returns the bytes, and the number of bytes read.
    fn instruction_bytes(&self, at: Gva) -> ([u8; INSTRUCTION_BYTES], usize) {
        let mut bytes = [0; INSTRUCTION_BYTES];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let found = self
                .registers
                .fd
                .translate_gva(at.wrapping_add(i as u64).0)
                .ok();
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

/// Whether KVM itself has single-stepped the vCPU. On an SVM without virtual NMIs, KVM steps over an instruction that
/// blocks the injection of an NMI, an `iret` for example. KVM reports the step like a step of the guest, after restoring
/// the guest's TF. (A guest's `popf` that ends the guest's stepping looks the same, if an NMI arrives at the same moment:
/// the guest then misses the last step.) VT-x needs no step.
fn is_step_of_kvm(registers: &mut VcpuRegisters<'_>) -> Result<bool, VcpuError> {
    let steps_itself = registers.regs()?.rflags & RFLAGS_TF != 0;
    Ok(!steps_itself && registers.reported_events()?.nmi.pending != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcpu::debug_setup::{BreakpointBytes, HardwareBreakpoint, HardwareBreakpoints};

    const HERE: Gva = Gva(0xffff_ffff_8100_0000);
    /// DR6 with its reserved bits and without a cause.
    const UNTOLD: u64 = 0xffff_0ff0;

    fn at_here() -> Debugging {
        let execute = [None, Some(HERE), Some(HERE.wrapping_add(1)), Some(HERE)];
        let execute = execute.map(|at| at.map(HardwareBreakpoint::Execute));
        Debugging {
            breakpoints: HardwareBreakpoints(execute),
            alone: false,
        }
    }

    fn executed(fired: u8) -> DebugCause {
        DebugCause::Fired { fired, written: 0 }
    }

    const STEP: DebugCause = DebugCause::Guest { written: 0 };

    #[test]
    fn dr6_names_the_fired_registers() {
        let debugging = Debugging::default();
        assert_eq!(debugging.cause(UNTOLD | 4, HERE), executed(4));
        assert_eq!(debugging.cause(UNTOLD, HERE), STEP);
    }

    #[test]
    fn step_of_the_guest_over_a_watched_write_is_both() {
        let mut debugging = at_here();
        let write = HardwareBreakpoint::Write(HERE, BreakpointBytes::Eight);
        debugging.breakpoints.0[0] = Some(write);
        // Bit 1 is an execution breakpoint at the next instruction, which fires later.
        let cause = debugging.cause(UNTOLD | DR6_STEPPED | 0b11, HERE);
        assert_eq!(cause, DebugCause::Guest { written: 1 });
        let both = DebugCause::Fired {
            fired: 0b10,
            written: 1,
        };
        assert_eq!(debugging.cause(UNTOLD | 0b11, HERE), both);
        // Without DR6, a write is not known.
        assert_eq!(debugging.cause(UNTOLD, Gva(1)), STEP);
    }

    #[test]
    fn step_and_guarded_register_are_the_guests_own() {
        for own in [DR6_STEPPED, DR6_ACCESS, DR6_TASK] {
            assert_eq!(at_here().cause(UNTOLD | own, HERE), STEP);
            // Bit 1 is left from an earlier hit of DR1.
            let left = UNTOLD | own | 2;
            assert_eq!(at_here().cause(left, HERE.wrapping_add(2)), STEP);
        }
    }

    #[test]
    fn without_dr6_the_armed_registers_at_the_address_have_fired() {
        assert_eq!(at_here().cause(UNTOLD, HERE), executed(0b1010));
        assert_eq!(
            at_here().cause(UNTOLD, HERE.wrapping_add(1)),
            executed(0b100)
        );
        assert_eq!(at_here().cause(UNTOLD, HERE.wrapping_add(2)), STEP);
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
        // A cause stays until the guest clears the bit. A clear bit reports a bus lock.
        let stepped = UNTOLD | DR6_STEPPED;
        assert_eq!(dr6_of_guest(stepped, UNTOLD), stepped);
        assert_eq!(
            dr6_of_guest(UNTOLD, UNTOLD & !(1 << 11)),
            UNTOLD & !(1 << 11)
        );
    }

    #[test]
    fn dr6_of_own_breakpoint_names_the_registers_that_fired_last() {
        assert_eq!(dr6_of_own_breakpoint(UNTOLD, 0b100), UNTOLD | 0b100);
        assert_eq!(dr6_of_own_breakpoint(UNTOLD | 0b11, 0b100), UNTOLD | 0b100);
        let stepped = UNTOLD | DR6_STEPPED;
        assert_eq!(dr6_of_own_breakpoint(stepped, 1), stepped | 1);
    }
}
