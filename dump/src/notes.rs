//! The notes of a core file.

use vmm::VcpuState;

use crate::registers;

const NT_PRSTATUS: u32 = 1;

/// The registers of each vCPU, in the order of the vCPUs, because readers count; crash counts only the vCPUs that are online in the guest. Then the kernel's VMCOREINFO.
pub(crate) fn all(vcpus: &[VcpuState], vmcoreinfo: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (thread, vcpu) in (1..).zip(vcpus) {
        add(
            &mut out,
            "CORE",
            NT_PRSTATUS,
            &registers::prstatus(thread, vcpu),
        );
    }
    if !vmcoreinfo.is_empty() {
        add(&mut out, "VMCOREINFO", 0, vmcoreinfo);
    }
    out
}

fn add(out: &mut Vec<u8>, name: &str, kind: u32, contents: &[u8]) {
    // Names and contents have at most a few kilobytes.
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
    out.extend(length(name.len() + 1));
    out.extend(length(contents.len()));
    out.extend(kind.to_le_bytes());
    out.extend(name.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(contents);
    out.resize(out.len().next_multiple_of(4), 0);
}
