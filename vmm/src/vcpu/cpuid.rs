//! The CPUID a vCPU shows: what this KVM supports, with the vCPU's own place in the topology.

use std::arch::x86_64::__cpuid;

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};

use super::stopped::VcpuError;
use crate::kvm::Host;

/// Leaf 1 ECX: the LAPIC's timer has TSC-deadline mode. KVM leaves it to us to say so.
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

/// AMD's first-level caches and TLBs. Some KVMs leave it empty, and Linux divides by the associativity in it on
/// processors of family 15h, before it can say so.
const CACHES: u32 = 0x8000_0005;

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
    let id_bits = u32::BITS - count.saturating_sub(1).leading_zeros();
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            1 => {
                entry.ecx |= TSC_DEADLINE | X2APIC | HYPERVISOR;
                entry.ebx = (entry.ebx & 0xffff) | (index << 24) | (count.min(255) << 16);
                // HTT: EBX[23:16] counts.
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
    Ok(cpuid)
}
