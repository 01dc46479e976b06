//! The CPUID of a vCPU: the CPUID supported by KVM, with changes, and with the vCPU's position in the topology.

use std::arch::x86_64::__cpuid;

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};

use super::error::VcpuError;
use crate::kvm::Host;

/// Leaf 1 ECX: the LAPIC's timer has TSC-deadline mode. KVM does not report the bit as supported.
const TSC_DEADLINE: u32 = 1 << 24;
/// Leaf 1 ECX: x2APIC.
const X2APIC: u32 = 1 << 21;
/// Leaf 1 ECX: there is a hypervisor.
const HYPERVISOR: u32 = 1 << 31;

/// Leaf 7 ECX: shadow stacks; EDX: indirect branch tracking. hyprobe executes calls, returns and indirect branches for
/// the guest and models neither.
const SHADOW_STACK: u32 = 1 << 7;
const BRANCH_TRACKING: u32 = 1 << 20;
/// Leaf 7, subleaf 1, EAX: FRED, under which an injected page fault needs more than a vector and an error code.
const FRED: u32 = 1 << 17;

/// AMD's first-level caches and TLBs. Some KVMs leave the leaf empty. On processors of family 15h, Linux divides by the
/// associativity in the leaf, and fails before it can print a message.
const CACHES: u32 = 0x8000_0005;

/// Leaf 1 ECX: VT-x. Leaf 0x8000_0001 ECX: SVM. A guest with a guest of its own needs KVM to see each store to the inner
/// guest's page tables, and KVM does not see the stores of hyprobe's emulator.
const VTX: u32 = 1 << 5;
const SVM: u32 = 1 << 2;
/// SVM's features.
const SVM_FEATURES: u32 = 0x8000_000a;

/// KVM's own leaf: paravirtual features.
const KVM_FEATURES: u32 = 0x4000_0001;
/// Steal time. KVM raises the version of a vCPU's steal time at each `KVM_RUN`, and the guest reads the version in a loop until
/// two reads are equal: a hit in the loop that exits would keep the loop going for ever.
const STEAL_TIME: u32 = 1 << 5;
/// TLB flushes at a vCPU's next entry. The flag is in the memory of the steal time.
const PV_TLB_FLUSH: u32 = 1 << 9;

const fn is_empty(entry: &kvm_cpuid_entry2) -> bool {
    entry.eax | entry.ebx | entry.ecx | entry.edx == 0
}

/// CPUID for vCPU `index` of `count`, each a core of its own in one package.
pub(crate) fn for_vcpu(host: &Host, index: u32, count: u32) -> Result<CpuId, VcpuError> {
    let mut cpuid = host
        .kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(|source| VcpuError {
            request: "KVM_GET_SUPPORTED_CPUID",
            vcpu: index as usize,
            source,
        })?;
    adapt(cpuid.as_mut_slice(), index, count);
    Ok(cpuid)
}

/// Changes the CPUID supported by KVM into the CPUID of vCPU `index` of `count`.
fn adapt(entries: &mut [kvm_cpuid_entry2], index: u32, count: u32) {
    let id_bits = u32::BITS - count.saturating_sub(1).leading_zeros();
    for entry in entries {
        match entry.function {
            1 => {
                entry.ecx |= TSC_DEADLINE | X2APIC | HYPERVISOR;
                entry.ecx &= !VTX;
                entry.ebx = (entry.ebx & 0xffff) | (index << 24) | (count.min(255) << 16);
                // HTT: EBX[23:16] is valid.
                entry.edx = if count > 1 {
                    entry.edx | (1 << 28)
                } else {
                    entry.edx & !(1 << 28)
                };
            }
            7 if entry.index == 0 => {
                entry.ecx &= !SHADOW_STACK;
                entry.edx &= !BRANCH_TRACKING;
            }
            7 if entry.index == 1 => entry.eax &= !FRED,
            4 => entry.eax = (entry.eax & 0x3ff) | (count.saturating_sub(1).min(63) << 26),
            0xb | 0x1f => {
                entry.edx = index;
                (entry.eax, entry.ebx, entry.ecx) = match entry.index {
                    0 => (0, 1, 0x100),
                    1 => (id_bits, count, 0x201),
                    level => (0, 0, level),
                };
            }
            0x8000_0001 => entry.ecx &= !SVM,
            SVM_FEATURES => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
            KVM_FEATURES => entry.eax &= !(STEAL_TIME | PV_TLB_FLUSH),
            CACHES if is_empty(entry) => {
                let host = __cpuid(CACHES);
                (entry.eax, entry.ebx) = (host.eax, host.ebx);
                (entry.ecx, entry.edx) = (host.ecx, host.edx);
            }
            0x8000_0008 => entry.ecx = (id_bits << 12) | count.saturating_sub(1).min(0xff),
            0x8000_001e => {
                entry.eax = index;
                entry.ebx = index & 0xff;
                entry.ecx = 0;
            }
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A KVM that supports every feature in `function`.
    fn everything(function: u32) -> kvm_cpuid_entry2 {
        let (eax, ebx, ecx, edx) = (u32::MAX, u32::MAX, u32::MAX, u32::MAX);
        kvm_cpuid_entry2 {
            function,
            eax,
            ebx,
            ecx,
            edx,
            ..Default::default()
        }
    }

    #[test]
    fn guest_is_shown_no_virtualisation() {
        let mut entries = [1, 0x8000_0001, SVM_FEATURES].map(everything);
        adapt(&mut entries, 0, 2);
        let [basic, extended, svm] = entries;
        assert_eq!(basic.ecx, !VTX);
        assert_eq!((extended.ecx, extended.edx), (!SVM, u32::MAX));
        assert!(is_empty(&svm), "{svm:?}");
    }

    #[test]
    fn guest_is_offered_nothing_that_each_entry_changes() {
        let mut entries = [KVM_FEATURES].map(everything);
        adapt(&mut entries, 0, 1);
        let [offered] = entries;
        assert_eq!(offered.eax, !(STEAL_TIME | PV_TLB_FLUSH));
        assert_eq!(offered.edx, u32::MAX);
    }

    #[test]
    fn each_vcpu_has_its_own_place() {
        let mut entries = [1, 0xb].map(everything);
        adapt(&mut entries, 1, 2);
        let [basic, topology] = entries;
        assert_eq!(basic.ebx >> 16, 0x0102);
        assert_eq!((topology.edx, topology.eax), (1, 0));
    }
}
