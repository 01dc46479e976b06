//! `--accel auto`: this host's KVM, or nested.

use std::fmt;

use outer::{Qemu, QemuError};
use vmm::{HostFacts, OpenError, SelfTestError};

/// The reason why this host's KVM cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// KVM cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// KVM refuses a request that every KVM must support.
    #[error(transparent)]
    SelfTest(#[from] SelfTestError),
}

/// Where to run, with the reason in a line.
#[derive(Debug)]
pub(crate) enum Choice {
    /// On this host's KVM.
    Kvm {
        /// Why.
        reason: String,
    },
    /// In an outer Linux.
    Nested {
        /// The QEMU that emulates the outer Linux.
        qemu: Qemu,
        /// Why.
        reason: String,
    },
    /// Stock kernels cannot be run here, for two reasons.
    Neither {
        /// The problem of this host's KVM.
        kvm: String,
        /// The problem of QEMU.
        qemu: QemuError,
    },
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kvm { reason } => write!(f, "running on this host's KVM: {reason}"),
            Self::Nested { qemu, reason } => write!(f, "running nested, in {qemu}: {reason}"),
            Self::Neither { kvm, qemu } => {
                write!(f, "this host cannot run stock kernels: {kvm}; and {qemu}")
            }
        }
    }
}

/// Chooses KVM if KVM opens, harms no guest and runs ring 0 at hardware speed, else nested. `qemu` is called only in the second case.
pub(crate) fn choose(
    kvm: &Result<HostFacts, Unusable>,
    qemu: impl FnOnce() -> Result<Qemu, QemuError>,
) -> Choice {
    let looked_at = kvm.as_ref().map(|facts| (facts, facts.obstacle()));
    let reason = match looked_at {
        Ok((facts, Some(obstacle))) if facts.runs_kernels() => obstacle.to_string(),
        Ok((facts, None)) if facts.runs_kernels() => {
            return Choice::Kvm {
                reason: format!("its ring 0 executes {}", facts.speed.in_words()),
            };
        }
        Ok((facts, _)) => format!(
            "this host's KVM has no hardware virtualisation behind it ({} in ring 0: a stock \
             kernel would take minutes to boot)",
            facts.speed.in_words()
        ),
        Err(error) => crate::failure::in_one_line(error),
    };
    match qemu() {
        Ok(qemu) => Choice::Nested { qemu, reason },
        Err(qemu) => Choice::Neither { kvm: reason, qemu },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vmm::{
        BreakpointInjection, Int1Delivery, Int3Delivery, InterruptedInt3, PortDelivery, Speed,
    };

    use super::*;

    fn facts(instructions: u64) -> HostFacts {
        HostFacts {
            int3: Int3Delivery::DebugExit,
            int3_user: Int3Delivery::DebugExit,
            breakpoint_injection: BreakpointInjection::AtInstruction,
            port: PortDelivery::AtInstruction,
            interrupted_int3: InterruptedInt3::Cancelled,
            int1: Int1Delivery::AfterInstruction,
            holds_interrupts: true,
            debug_execute: true,
            breakpoint_before_fetch: true,
            debug_data: true,
            read_only_slots: true,
            table_writes_seen: true,
            msr_exits: true,
            speed: Speed {
                instructions,
                took: Duration::from_millis(1),
            },
            exit_ns: 1_000,
        }
    }

    #[test]
    fn a_fast_kvm_is_taken_and_qemu_is_not_asked() {
        let choice = choose(&Ok(facts(2_000_000)), || panic!("QEMU is not needed"));
        assert!(matches!(choice, Choice::Kvm { .. }));
        assert!(choice.to_string().contains("2000 million"), "{choice}");
    }

    #[test]
    fn kvm_that_would_harm_a_guest_is_not_taken() {
        let shadow = HostFacts {
            table_writes_seen: false,
            ..facts(2_000_000)
        };
        let choice = choose(&Ok(shadow), || Err(QemuError::Missing));
        assert!(matches!(choice, Choice::Neither { .. }));
        assert!(choice.to_string().contains("npt=1"), "{choice}");
    }

    #[test]
    fn with_neither_both_reasons_are_given() {
        for kvm in [Ok(facts(2_000)), Err(OpenError::Missing.into())] {
            let choice = choose(&kvm, || Err(QemuError::Missing));
            assert!(matches!(choice, Choice::Neither { .. }));
            let text = choice.to_string();
            assert!(text.contains("KVM") || text.contains("/dev/kvm"), "{text}");
            assert!(text.contains("apt install"), "{text}");
        }
    }
}
