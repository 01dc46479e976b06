//! The reasons for missing guest memory, slots, detour memory or protected pages.

use address::Gpa;

/// Guest memory could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum RamError {
    /// The host has no address space for the memory.
    #[error("cannot map {bytes} bytes of guest memory")]
    Map {
        /// Requested size.
        bytes: u64,
        /// The cause.
        source: vm_memory::mmap::FromRangesError,
    },
    /// The host cannot exclude the memory from core dumps: a crash of the process would write guest memory to a file.
    #[error("cannot keep guest memory out of core dumps")]
    CoreDumps(#[source] rustix::io::Errno),
}

/// Why a plan of memory slots is not in force.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// The plan needs more slots than KVM has.
    #[error(
        "the probes need {needed} memory slots, this KVM has {available}: probe fewer pages before the guest has booted"
    )]
    TooMany {
        /// Slots the plan needs.
        needed: usize,
        /// Slots that KVM has.
        available: usize,
    },
    /// KVM_SET_USER_MEMORY_REGION failed.
    #[error("KVM refused the memory slot at {gpa:#x} of {bytes:#x} bytes")]
    Refused {
        /// Guest-physical start.
        gpa: u64,
        /// Size; 0 if the slot was to be removed.
        bytes: u64,
        /// KVM's answer.
        #[source]
        source: kvm_ioctls::Error,
    },
}

/// Why the machine has no detour memory.
#[derive(Debug, thiserror::Error)]
pub enum DetourMapError {
    /// The guest's physical address space is full.
    #[error("no guest-physical address is free for detour memory")]
    NoPlace,
    /// The host has no memory left.
    #[error(transparent)]
    Memory(#[from] RamError),
    /// KVM cannot map the detour memory.
    #[error(transparent)]
    Slot(#[from] SlotError),
}

/// Why pages cannot be protected.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
    /// The page is not RAM.
    #[error("the guest has no RAM at {gpa}")]
    NoRam {
        /// The page.
        gpa: Gpa,
    },
    /// The run has protected too many pages.
    #[error(
        "a run can protect {most} pages, those of removed watchpoints included: watch fewer pages"
    )]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// The host refuses a mapping.
    #[error("the host refused {request} for a protected page")]
    Host {
        /// The system call.
        request: &'static str,
        /// The host's answer.
        #[source]
        source: rustix::io::Errno,
    },
    /// KVM refuses the slots of the pages.
    #[error(transparent)]
    Slot(#[from] SlotError),
}
