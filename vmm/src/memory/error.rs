//! The reasons for missing guest memory, slots or detour memory.

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
