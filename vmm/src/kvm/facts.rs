//! The facts about this host's KVM, as found by the self-test: computed once.
//!
//! All code that depends on the kind of KVM reads the facts from here; no other code asks which KVM is running.

use std::time::Duration;

use address::Gva;

/// The delivery of an `int3` of the guest while `KVM_GUESTDBG_USE_SW_BP` is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int3Delivery {
    /// `KVM_EXIT_DEBUG`, exception 3: VT-x and SVM.
    DebugExit,
    /// `KVM_EXIT_INTERNAL_ERROR`, emulation failure, RIP at the `int3`: a KVM that interprets the guest.
    EmulationFailure,
    /// Delivery through the guest's own IDT, without a report to the VMM.
    ToGuest,
    /// Any other result, or the guest did not survive.
    Broken,
}

impl Int3Delivery {
    /// Whether an `int3` reaches hyprobe.
    #[must_use]
    pub fn is_usable(self) -> bool {
        matches!(self, Self::DebugExit | Self::EmulationFailure)
    }
}

/// The delivery of `out dx, al` in ring 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortDelivery {
    /// Exits, for every port, with RIP at the instruction: VT-x and SVM.
    AtInstruction,
    /// Exits, for every port, with RIP behind the instruction: a KVM that interprets the guest.
    AfterInstruction,
    /// Some ports do not exit.
    Broken,
}

impl PortDelivery {
    /// Whether a one-byte port write can serve as a plant.
    #[must_use]
    pub fn is_usable(self) -> bool {
        self != Self::Broken
    }

    /// Whether KVM advances RIP at the next entry to the guest, unless RIP has changed by then. Otherwise RIP has advanced
    /// already, the write is done, and the self-test continues from the new RIP.
    pub(crate) fn is_completed_later(self) -> bool {
        self != Self::AfterInstruction
    }

    /// The linear address of a one-byte port write that exited with RIP `rip`.
    #[must_use]
    pub fn instruction(self, rip: Gva) -> Gva {
        match self {
            Self::AtInstruction | Self::Broken => rip,
            Self::AfterInstruction => rip.wrapping_sub(1),
        }
    }
}

/// The RIP that a vCPU needs at the injection of a #BP, for the guest to see the frame of an `int3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakpointInjection {
    /// At the `int3`: KVM adds its length.
    AtInstruction,
    /// Behind the `int3`: KVM pushes RIP unchanged.
    AfterInstruction,
    /// The guest did not get the exception.
    Broken,
}

impl BreakpointInjection {
    /// RIP for an `int3` at `at`.
    #[must_use]
    pub fn rip_for(self, at: Gva) -> Gva {
        match self {
            Self::AtInstruction | Self::Broken => at,
            Self::AfterInstruction => at.wrapping_add(1),
        }
    }
}

/// The fate of the #BP of an `int3` that KVM does not intercept, if a VM exit interrupts the delivery and the VMM sets the
/// events that KVM reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptedInt3 {
    /// KVM drops the #BP, and the vCPU executes the present bytes at the address of the `int3`. All of Linux's KVM does, by
    /// the source.
    Cancelled,
    /// KVM reports the #BP, or delivers the #BP after the `int3` has gone.
    Kept,
    /// The self-test did not achieve an interruption.
    NotSeen,
}

/// The delivery of a program's `int1` while hyprobe's debug registers are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int1Delivery {
    /// A debug exit with RIP at the instruction: VT-x.
    AtInstruction,
    /// A debug exit with RIP behind the instruction: SVM.
    AfterInstruction,
    /// #DB in the guest, without an exit.
    ToGuest,
    /// Any other result.
    Broken,
}

/// How fast ring 0 runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Instructions executed.
    pub instructions: u64,
    /// Time they took.
    pub took: Duration,
}

impl Speed {
    /// The speed in words: `2 million instructions a second`.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self.mips() {
            0 => "under a million instructions a second".to_owned(),
            mips => format!("{mips} million instructions a second"),
        }
    }

    /// Millions of instructions a second, rounded down.
    #[must_use]
    pub fn mips(self) -> u64 {
        let micros = u64::try_from(self.took.as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        self.instructions / micros
    }
}

/// The facts about a host's KVM, as found by the self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// `int3` in ring 0.
    pub int3: Int3Delivery,
    /// `int3` in ring 3.
    pub int3_user: Int3Delivery,
    /// The way to inject a #BP into the guest.
    pub breakpoint_injection: BreakpointInjection,
    /// An `int3` on its way to the guest's handler can be cancelled.
    pub interrupted_int3: InterruptedInt3,
    /// `out dx, al` in ring 0.
    pub port: PortDelivery,
    /// `int1` in ring 3.
    pub int1: Int1Delivery,
    /// `KVM_GUESTDBG_BLOCKIRQ` holds interrupts back; without the flag, the interrupts are delivered.
    pub holds_interrupts: bool,
    /// Execution breakpoints in debug registers fire in ring 0.
    pub debug_execute: bool,
    /// An execution breakpoint fires before the vCPU exits at a page that KVM cannot access. If it does not, the emulator of the page raises it.
    pub breakpoint_before_fetch: bool,
    /// Data breakpoints in debug registers fire in ring 0.
    pub debug_data: bool,
    /// A guest write to a read-only slot exits; a read does not.
    pub read_only_slots: bool,
    /// The guest's processor sees the VMM's writes to the guest's page tables. If KVM keeps shadow tables, without EPT or
    /// NPT, the processor does not see the writes.
    pub table_writes_seen: bool,
    /// A write of a filtered MSR exits.
    pub msr_exits: bool,
    /// Ring-0 speed.
    pub speed: Speed,
    /// Time of one `out` exit and re-entry, nanoseconds.
    pub exit_ns: u64,
}

/// Below this, a stock kernel takes minutes to boot: the guest's ring 0 is interpreted.
const HARDWARE_SPEED_MIPS: u64 = 50;

/// Why no guest may be probed on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostObstacle {
    /// See [`HostFacts::table_writes_seen`].
    #[error(
        "this KVM keeps shadow page tables (no EPT or NPT), so that the guest would not see what an emulated instruction writes to its page tables: load kvm_intel with ept=1 or kvm_amd with npt=1, if the processor (or the hypervisor around this machine) offers them"
    )]
    ShadowPaging,
    /// See [`HostFacts::read_only_slots`].
    #[error(
        "this KVM does not report writes to read-only memory, so that plants would be lost when the guest patches its text"
    )]
    WritesUnseen,
}

impl HostFacts {
    /// The reason why this host would harm a probed guest, if any.
    #[must_use]
    pub fn obstacle(&self) -> Option<HostObstacle> {
        match (self.table_writes_seen, self.read_only_slots) {
            (false, _) => Some(HostObstacle::ShadowPaging),
            (true, false) => Some(HostObstacle::WritesUnseen),
            (true, true) => None,
        }
    }

    /// Whether ring 0 runs at a speed at which a stock kernel boots in seconds.
    #[must_use]
    pub fn runs_kernels(&self) -> bool {
        self.speed.mips() >= HARDWARE_SPEED_MIPS
    }

    /// Whether an `int3` reaches the guest's own handler without an exit and with a right frame, while KVM does not
    /// intercept #BP.
    ///
    /// If a page is not mapped, KVM repeats the delivery as an injection. Where an injected #BP needs an adjusted RIP, the
    /// repeated one does too, and the VMM cannot adjust RIP there. A plant whose #BP is being delivered may go only if
    /// that #BP can be cancelled.
    #[must_use]
    pub fn int3_reaches_guest(&self) -> bool {
        matches!(self.int3, Int3Delivery::DebugExit | Int3Delivery::ToGuest)
            && self.breakpoint_injection == BreakpointInjection::AtInstruction
            && self.interrupted_int3 != InterruptedInt3::Kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_write_is_one_byte_before_a_rip_that_has_moved() {
        assert_eq!(
            PortDelivery::AtInstruction.instruction(Gva(0x1000)),
            Gva(0x1000)
        );
        assert_eq!(
            PortDelivery::AfterInstruction.instruction(Gva(0x1000)),
            Gva(0xfff)
        );
        assert_eq!(
            PortDelivery::AfterInstruction.instruction(Gva(0)),
            Gva(u64::MAX)
        );
    }

    #[test]
    fn an_injected_breakpoint_looks_like_one_that_was_executed() {
        assert_eq!(
            BreakpointInjection::AtInstruction.rip_for(Gva(0x1000)),
            Gva(0x1000)
        );
        assert_eq!(
            BreakpointInjection::AfterInstruction.rip_for(Gva(0x1000)),
            Gva(0x1001)
        );
    }

    #[test]
    fn only_plants_that_exit_are_usable() {
        let usable = [
            Int3Delivery::DebugExit,
            Int3Delivery::EmulationFailure,
            Int3Delivery::ToGuest,
            Int3Delivery::Broken,
        ]
        .map(Int3Delivery::is_usable);
        assert_eq!(usable, [true, true, false, false]);
        assert!(PortDelivery::AfterInstruction.is_usable() && !PortDelivery::Broken.is_usable());
    }

    #[test]
    fn speed_is_in_millions_a_second() {
        let speed = |instructions, nanos| {
            Speed {
                instructions,
                took: Duration::from_nanos(nanos),
            }
            .mips()
        };
        assert_eq!(speed(2_000_000, 1_000_000_000), 2);
        assert_eq!(speed(49_999_999, 1_000_000_000), 49);
        // Faster than the clock.
        assert_eq!(speed(1000, 0), 1000);
    }

    #[test]
    fn an_int3_is_the_guests_where_it_is_delivered_again_as_it_was() {
        let reaches = |int3, breakpoint_injection, interrupted_int3| {
            HostFacts {
                int3,
                int3_user: int3,
                breakpoint_injection,
                interrupted_int3,
                port: PortDelivery::AtInstruction,
                int1: Int1Delivery::ToGuest,
                holds_interrupts: true,
                debug_execute: true,
                breakpoint_before_fetch: true,
                debug_data: true,
                read_only_slots: true,
                table_writes_seen: true,
                msr_exits: true,
                speed: Speed {
                    instructions: 0,
                    took: Duration::ZERO,
                },
                exit_ns: 0,
            }
            .int3_reaches_guest()
        };
        let (at, after) = (
            BreakpointInjection::AtInstruction,
            BreakpointInjection::AfterInstruction,
        );
        for cancelled in [InterruptedInt3::Cancelled, InterruptedInt3::NotSeen] {
            assert!(reaches(Int3Delivery::DebugExit, at, cancelled));
            assert!(reaches(Int3Delivery::ToGuest, at, cancelled));
            assert!(!reaches(Int3Delivery::DebugExit, after, cancelled));
            assert!(!reaches(Int3Delivery::EmulationFailure, at, cancelled));
        }
        assert!(!reaches(Int3Delivery::DebugExit, at, InterruptedInt3::Kept));
    }
}
