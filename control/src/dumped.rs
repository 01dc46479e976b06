//! The parts of a controlled machine's dump.

use std::io;

use address::{Gpa, Gva};
use dump::{Core, Guest, KernelPart, Piece, Pieces};
use introspect::{PhysMemory, Unreadable};
use manifest::GuestEnd;
use probes::At;
use text::GuestError;
use thiserror::Error;
use vmm::VcpuState;

use crate::target::Target;
use crate::target_memory::TargetMemory;

/// A processor begins here after a reset or an INIT.
const RESET_VECTOR: u64 = 0xffff_fff0;

/// A sentence about the vCPUs in detours, if there are any: their registers are hyprobe's, and a moment later they are the guest's.
pub(crate) fn in_detours(target: &dyn Target, vcpus: &[VcpuState]) -> Option<String> {
    let inside = numbers(vcpus, |vcpu| target.is_in_detour(Gva(vcpu.regs.rip)))?;
    Some(format!(
        "in hyprobe's code are the vCPUs {inside}: their registers are not the guest's"
    ))
}

/// A sentence about the vCPUs with the registers of a reset, if there are any. On AMD, KVM resets a vCPU that has a triple fault before KVM
/// reports the triple fault.
fn reset(vcpus: &[VcpuState]) -> Option<String> {
    let is_reset = |vcpu: &VcpuState| {
        vcpu.regs.rip.wrapping_add(vcpu.sregs.cs.base) & u64::from(u32::MAX) == RESET_VECTOR
    };
    let reset = numbers(vcpus, is_reset)?;
    Some(format!(
        "KVM has reset the registers of the vCPUs {reset} at the triple fault, or the guest has not started these vCPUs"
    ))
}

/// The numbers of the vCPUs for which `is_one` holds, with commas.
fn numbers(vcpus: &[VcpuState], is_one: impl Fn(&VcpuState) -> bool) -> Option<String> {
    let ones = (0_usize..).zip(vcpus).filter(|(_, vcpu)| is_one(vcpu));
    let ones: Vec<String> = ones.map(|(number, _)| number.to_string()).collect();
    (!ones.is_empty()).then(|| ones.join(", "))
}

/// The parts of the paused guest. `remarks` are about the vCPUs.
pub(crate) fn describe(
    target: &dyn Target,
    vcpus: Vec<VcpuState>,
    remarks: impl IntoIterator<Item = String>,
) -> Guest {
    let memory = TargetMemory(target);
    let banner = target.facts().kernel.as_deref();
    let translate = |at| target.translate(at);
    let mut kernel = KernelPart::find(&memory.kernel(), target.slide(), &translate, banner);
    kernel.remarks.extend(remarks);
    Guest {
        ram: target.ram(),
        vcpus,
        kernel,
    }
}

/// Guest memory without plants.
pub(crate) struct Original<'t>(pub(crate) &'t dyn Target);

impl PhysMemory for Original<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let len = buf.len();
        let read = self.0.read(At::Physical(gpa), buf);
        read.map_err(|_| Unreadable { gpa, len })
    }
}

/// The reason why an ended machine cannot be dumped.
#[derive(Debug, Error)]
pub enum DumpEndedError {
    /// The registers.
    #[error("KVM does not tell the registers")]
    Registers(#[source] GuestError),
    /// The memory.
    #[error(transparent)]
    Memory(#[from] Unreadable),
    /// The output.
    #[error("cannot write the dump")]
    Write(#[source] io::Error),
}

/// Dumps a machine that has ended by `end`. `begin` gets the size of the file and a remark for each missing part, `take` all pieces. Returns the size.
///
/// # Errors
///
/// See [`DumpEndedError`].
pub fn dump_ended(
    target: &dyn Target,
    end: GuestEnd,
    begin: impl FnOnce(u64, &[String]) -> io::Result<()>,
    mut take: impl FnMut(Piece<'_>) -> io::Result<()>,
) -> Result<u64, DumpEndedError> {
    let paused = target.pause();
    let vcpus = paused.vcpu_states();
    let vcpus = vcpus.map_err(DumpEndedError::Registers)?;
    let inside = in_detours(target, &vcpus);
    let reset = match end {
        GuestEnd::TripleFault => reset(&vcpus),
        _ => None,
    };
    let guest = describe(target, vcpus, inside.into_iter().chain(reset));
    let mut pieces = Pieces::new(Core::new(&guest));
    begin(pieces.bytes(), &guest.kernel.remarks).map_err(DumpEndedError::Write)?;
    let mut written = Ok(());
    while pieces.step(&Original(target), |piece| {
        if written.is_ok() {
            written = take(piece);
        }
    })? {
        if let Err(error) = written {
            return Err(DumpEndedError::Write(error));
        }
    }
    Ok(pieces.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_vcpus_at_the_reset_vector_are_reset() {
        let mut vcpus = vec![VcpuState::default(); 3];
        assert_eq!(reset(&vcpus), None);
        for at in [0, 2] {
            (vcpus[at].regs.rip, vcpus[at].sregs.cs.base) = (0xfff0, 0xffff_0000);
        }
        let told = reset(&vcpus).expect("two");
        assert!(told.contains("vCPUs 0, 2 at"), "{told}");
    }
}
