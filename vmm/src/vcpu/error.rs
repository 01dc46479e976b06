//! The reasons for a vCPU that cannot continue.

use address::{Gpa, Gva};

use crate::panicked::Panicked;
use crate::trap::TrapError;

/// A KVM request about one vCPU failed.
#[derive(Debug, thiserror::Error)]
#[error("KVM refused {request} for vCPU {vcpu}")]
pub struct VcpuError {
    /// The ioctl, e.g. `KVM_GET_SREGS`.
    pub request: &'static str,
    /// Which vCPU.
    pub vcpu: usize,
    /// KVM's answer.
    #[source]
    pub source: kvm_ioctls::Error,
}

/// Why a vCPU cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A KVM request failed.
    #[error(transparent)]
    Request(#[from] VcpuError),
    /// The trap handler failed.
    #[error(transparent)]
    Trap(#[from] TrapError),
    /// A thread of the machine panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// KVM could not enter the guest.
    #[error("vCPU {vcpu} cannot enter the guest: hardware reason {reason:#x}")]
    FailEntry {
        /// Which vCPU.
        vcpu: usize,
        /// `hardware_entry_failure_reason`.
        reason: u64,
    },
    /// KVM could not emulate a guest instruction.
    #[error("KVM cannot emulate the guest's instruction at {rip} (bytes {bytes:02x?})")]
    EmulationFailure {
        /// RIP.
        rip: Gva,
        /// The instruction's bytes, as far as reported by KVM.
        bytes: Vec<u8>,
    },
    /// The guest has sent a vCPU a system-management interrupt.
    #[error(
        "the guest has sent its vCPU {vcpu} a system-management interrupt, and this machine has no memory for that mode"
    )]
    SystemManagement {
        /// Which vCPU.
        vcpu: usize,
    },
    /// The guest has sent its first vCPU an INIT.
    #[error(
        "the guest has restarted its vCPU {vcpu} by INIT, and this machine has no firmware to begin with"
    )]
    NoFirmware {
        /// Which vCPU.
        vcpu: usize,
    },
    /// The VMM does not know the reason of an exit.
    #[error("vCPU {vcpu} left the guest at {rip} for a reason that hyprobe does not know: {exit}")]
    UnknownExit {
        /// Which vCPU.
        vcpu: usize,
        /// RIP.
        rip: Gva,
        /// The exit, as kvm-ioctls prints it.
        exit: String,
    },
    /// A guest write to a read-only page could not be carried out.
    #[error("cannot carry out the guest's write at {gpa}")]
    Memory {
        /// Where.
        gpa: Gpa,
        /// The cause.
        #[source]
        source: vm_memory::GuestMemoryError,
    },
}
