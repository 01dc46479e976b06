//! Opening `/dev/kvm`, with a separate error for each failure that a new user can meet.

use std::io;
use std::path::Path;

use kvm_ioctls::{Cap, Kvm};

/// Why KVM cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// `/dev/kvm` does not exist.
    #[error(
        "there is no /dev/kvm: load kvm_intel or kvm_amd, enable virtualisation in the firmware, or run with --accel nested"
    )]
    Missing,
    /// The user has no permission to open the device.
    #[error(
        "no permission to open /dev/kvm: add this user to the group that owns it (often `kvm`), or run as root"
    )]
    Permission,
    /// Any other failure to open the device.
    #[error("cannot open /dev/kvm")]
    Open(#[source] io::Error),
    /// The device exists, but does not have KVM's stable API.
    #[error("/dev/kvm speaks API version {found}, hyprobe needs version 12")]
    ApiVersion {
        /// Result of KVM_GET_API_VERSION.
        found: i32,
    },
    /// KVM lacks a capability that hyprobe cannot work without.
    #[error("this KVM lacks {capability}, which hyprobe needs to {purpose}: use a newer kernel")]
    Lacks {
        /// Name of the capability.
        capability: &'static str,
        /// The use of the capability.
        purpose: &'static str,
    },
}

/// The capabilities that KVM reports and hyprobe uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// General registers and events come with the exit: reading them needs no system call.
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
/// The state that is to come with each exit: general registers and events.
const SYNCED: i32 =
    (kvm_bindings::KVM_SYNC_X86_REGS | kvm_bindings::KVM_SYNC_X86_EVENTS).cast_signed();
/// KVM_CAP_SET_GUEST_DEBUG2: KVM_CHECK_EXTENSION returns the known KVM_GUESTDBG_ flags.
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

    /// A leaf of the CPUID that KVM supports for guests, subleaf 0: EAX, EBX, ECX, EDX. Zeroes if KVM has no entry for `leaf`.
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

    /// Number of bits of a guest-physical address.
    #[must_use]
    pub(crate) fn guest_physical_bits(&self) -> u32 {
        match self.guest_cpuid(0x8000_0008)[0] & 0xff {
            // The width on a processor without the leaf.
            0 => 36,
            bits => bits,
        }
    }

    /// The capabilities that KVM reports.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}
