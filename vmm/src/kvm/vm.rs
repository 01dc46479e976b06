//! Requests about a whole VM: the quirks of KVM, and the exits for MSRs.

use kvm_bindings::kvm_enable_cap;
use kvm_ioctls::{MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd};

/// KVM_CAP_DISABLE_QUIRKS: KVM_CHECK_EXTENSION returns 1, and KVM ignores unknown bits.
const CAP_DISABLE_QUIRKS: u32 = 116;
/// KVM_CAP_DISABLE_QUIRKS2, from Linux 5.18 on: KVM_CHECK_EXTENSION returns the quirks known to KVM.
const CAP_DISABLE_QUIRKS2: u32 = 213;
/// For `out 0x7e, al`, KVM moves RIP before the exit.
const QUIRK_OUT_7E_INC_RIP: u64 = 1 << 3;
/// Deleting a slot drops the mappings of all slots.
const QUIRK_SLOT_ZAP_ALL: u64 = 1 << 7;

/// Makes guest writes of an MSR exit.
pub(crate) fn report_msr_writes(vm: &VmFd, index: u32) -> Result<(), kvm_ioctls::Error> {
    let mut cap = kvm_enable_cap {
        cap: kvm_bindings::KVM_CAP_X86_USER_SPACE_MSR,
        ..Default::default()
    };
    cap.args[0] = u64::from(kvm_bindings::KVM_MSR_EXIT_REASON_FILTER);
    vm.enable_cap(&cap)?;
    // The bitmap denies writes of the MSR: KVM exits to the VMM.
    let range = MsrFilterRange {
        flags: MsrFilterRangeFlags::WRITE,
        base: index,
        msr_count: 1,
        bitmap: &[0],
    };
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &[range])
}

/// Disables the unwanted quirks, if known to this KVM.
pub(crate) fn disable_quirks(vm: &VmFd) -> Result<(), kvm_ioctls::Error> {
    let extension = |capability: u32| vm.check_extension_raw(u64::from(capability));
    let chosen = unwanted_quirks(
        extension(CAP_DISABLE_QUIRKS2),
        extension(CAP_DISABLE_QUIRKS),
    );
    let Some((capability, quirks)) = chosen else {
        return Ok(());
    };
    let mut cap = kvm_enable_cap {
        cap: capability,
        ..Default::default()
    };
    cap.args[0] = quirks;
    vm.enable_cap(&cap)
}

/// Chooses the capability that disables quirks, and the quirks. `known` is the result of KVM_CHECK_EXTENSION for
/// KVM_CAP_DISABLE_QUIRKS2, `old` the result for KVM_CAP_DISABLE_QUIRKS. Each capability replaces the whole set, so the
/// VMM enables a single capability.
fn unwanted_quirks(known: i32, old: i32) -> Option<(u32, u64)> {
    match (u64::try_from(known).unwrap_or(0), old) {
        (0, ..=0) => None,
        (0, _) => Some((CAP_DISABLE_QUIRKS, QUIRK_OUT_7E_INC_RIP)),
        (known, _) => {
            let quirks = known & (QUIRK_OUT_7E_INC_RIP | QUIRK_SLOT_ZAP_ALL);
            (quirks != 0).then_some((CAP_DISABLE_QUIRKS2, quirks))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quirks_are_disabled_by_the_newest_capability_that_kvm_has() {
        // Linux 6.13 and later; 5.18 to 6.12; before 5.18; a KVM with neither capability.
        assert_eq!(
            unwanted_quirks(0xff, 1),
            Some((CAP_DISABLE_QUIRKS2, 0b1000_1000))
        );
        assert_eq!(
            unwanted_quirks(0x1f, 1),
            Some((CAP_DISABLE_QUIRKS2, 0b1000))
        );
        assert_eq!(unwanted_quirks(0, 1), Some((CAP_DISABLE_QUIRKS, 0b1000)));
        assert_eq!(unwanted_quirks(0, 0), None);
        // An error counts as no capability. If KVM knows no unwanted quirk, no quirk is disabled.
        assert_eq!(unwanted_quirks(-1, -1), None);
        assert_eq!(unwanted_quirks(0b111, 1), None);
    }
}
