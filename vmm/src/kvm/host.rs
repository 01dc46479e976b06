//! Opening `/dev/kvm`, with an error for each way in which it can fail a newcomer.

use std::io;
use std::path::Path;

use kvm_ioctls::{Cap, Kvm};

/// Why KVM cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such device.
    #[error(
        "there is no /dev/kvm: load kvm_intel or kvm_amd, enable virtualisation in the firmware, or run with --accel nested"
    )]
    Missing,
    /// The device may not be opened by this user.
    #[error(
        "no permission to open /dev/kvm: add this user to the group that owns it (often `kvm`), or run as root"
    )]
    Permission,
    /// Any other failure to open it.
    #[error("cannot open /dev/kvm")]
    Open(#[source] io::Error),
    /// The device is there but is not a KVM of the stable API.
    #[error("/dev/kvm speaks API version {found}, hyprobe needs version 12")]
    ApiVersion {
        /// What KVM_GET_API_VERSION said.
        found: i32,
    },
    /// A capability that nothing works without.
    #[error("this KVM lacks {capability}, which hyprobe needs to {purpose}: use a newer kernel")]
    Lacks {
        /// Name of the capability.
        capability: &'static str,
        /// What for.
        purpose: &'static str,
    },
}

/// What KVM says it can do, as far as hyprobe makes use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// General registers and what holds interrupts back come with the exit: no system call to look at them.
    pub sync_regs: bool,
    /// An instruction that KVM cannot emulate exits, and nothing is queued for the guest.
    pub exit_on_emulation_failure: bool,
    /// MSR accesses can be filtered and reported.
    pub msr_filter: bool,
    /// Interrupts can be held back (`KVM_GUESTDBG_BLOCKIRQ`).
    pub block_interrupts: bool,
    /// vCPUs at most.
    pub max_vcpus: usize,
    /// Memory slots at most.
    pub max_slots: usize,
}

/// The opened `/dev/kvm`.
#[derive(Debug)]
pub struct Host {
    pub(crate) kvm: Kvm,
    capabilities: Capabilities,
}

/// KVM_CAP_EXIT_ON_EMULATION_FAILURE, not yet named by kvm-ioctls.
pub(crate) const CAP_EXIT_ON_EMULATION_FAILURE: u32 = 204;
/// What is to come with each exit: general registers and events.
const SYNCED: i32 =
    (kvm_bindings::KVM_SYNC_X86_REGS | kvm_bindings::KVM_SYNC_X86_EVENTS).cast_signed();
/// KVM_CAP_SET_GUEST_DEBUG2: returns which KVM_GUESTDBG_ flags are known.
const CAP_SET_GUEST_DEBUG2: u64 = 195;

impl Host {
    /// Opens `/dev/kvm`.
    ///
    /// # Errors
    ///
    /// Each variant of [`OpenError`] is a sentence for the user.
    pub fn open() -> Result<Self, OpenError> {
        let kvm = Kvm::new().map_err(|error| match error.errno() {
            libc::ENOENT | libc::ENODEV | libc::ENXIO if !Path::new("/dev/kvm").exists() => {
                OpenError::Missing
            }
            libc::ENODEV | libc::ENXIO => OpenError::Missing,
            libc::EACCES | libc::EPERM => OpenError::Permission,
            errno => OpenError::Open(io::Error::from_raw_os_error(errno)),
        })?;
        let found = kvm.get_api_version();
        if found != 12 {
            return Err(OpenError::ApiVersion { found });
        }
        for (capability, name, purpose) in [
            (
                Cap::UserMemory,
                "KVM_CAP_USER_MEMORY",
                "give the guest memory",
            ),
            (
                Cap::ReadonlyMem,
                "KVM_CAP_READONLY_MEM",
                "keep its plants when the guest patches its text",
            ),
            (
                Cap::SplitIrqchip,
                "KVM_CAP_SPLIT_IRQCHIP",
                "see every port write",
            ),
            (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT", "pause vCPUs"),
            (
                Cap::SetGuestDebug,
                "KVM_CAP_SET_GUEST_DEBUG",
                "trap instructions",
            ),
        ] {
            if !kvm.check_extension(capability) {
                return Err(OpenError::Lacks {
                    capability: name,
                    purpose,
                });
            }
        }
        let raw = |capability: u64| kvm.check_extension_raw(capability);
        let capabilities = Capabilities {
            sync_regs: kvm.check_extension_int(Cap::SyncRegs) & SYNCED == SYNCED,
            exit_on_emulation_failure: raw(u64::from(CAP_EXIT_ON_EMULATION_FAILURE)) > 0,
            msr_filter: kvm.check_extension(Cap::X86UserSpaceMsr)
                && kvm.check_extension(Cap::X86MsrFilter),
            block_interrupts: u32::try_from(raw(CAP_SET_GUEST_DEBUG2)).unwrap_or(0)
                & kvm_bindings::KVM_GUESTDBG_BLOCKIRQ
                != 0,
            max_vcpus: kvm.get_max_vcpus(),
            max_slots: kvm.get_nr_memslots(),
        };
        Ok(Self { kvm, capabilities })
    }

    /// One leaf of the CPUID that guests are given, subleaf 0: EAX, EBX, ECX, EDX. Zeroes where there is none.
    #[must_use]
    pub fn guest_cpuid(&self, leaf: u32) -> [u32; 4] {
        let Ok(cpuid) = self
            .kvm
            .get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES)
        else {
            return [0; 4];
        };
        let entry = cpuid
            .as_slice()
            .iter()
            .find(|entry| entry.function == leaf && entry.index == 0);
        entry.map_or([0; 4], |entry| [entry.eax, entry.ebx, entry.ecx, entry.edx])
    }

    /// How many bits guest-physical addresses have.
    #[must_use]
    pub(crate) fn guest_physical_bits(&self) -> u32 {
        match self.guest_cpuid(0x8000_0008)[0] & 0xff {
            // What it is without that leaf.
            0 => 36,
            bits => bits,
        }
    }

    /// What this KVM says it can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}
