//! The parts of a controlled machine's dump.

use std::io;

use address::{Gpa, Gva};
use dump::{Core, Guest, KernelPart, Piece, Pieces};
use introspect::{PhysMemory, Unreadable};
use probes::At;
use text::GuestError;
use thiserror::Error;
use vmm::VcpuState;

use crate::target::Target;
use crate::target_memory::TargetMemory;

/// A sentence for each vCPU in a detour: its registers are hyprobe's, and a moment later they are the guest's.
pub(crate) fn in_detours(target: &dyn Target, vcpus: &[VcpuState]) -> Vec<String> {
    let rips = (0_usize..).zip(vcpus.iter().map(|vcpu| Gva(vcpu.regs.rip)));
    rips.filter(|(_, rip)| target.is_in_detour(*rip))
        .map(|(vcpu, rip)| {
            format!("vCPU {vcpu} is in hyprobe's code at {rip}: its registers are not the guest's")
        })
        .collect()
}

/// The parts of the paused guest. `remarks` are about the vCPUs.
pub(crate) fn describe(target: &dyn Target, vcpus: Vec<VcpuState>, remarks: Vec<String>) -> Guest {
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

/// Dumps a machine that has ended. `begin` gets the size of the file and a remark for each missing part, `take` all pieces. Returns the size.
///
/// # Errors
///
/// See [`DumpEndedError`].
pub fn dump_ended(
    target: &dyn Target,
    begin: impl FnOnce(u64, &[String]) -> io::Result<()>,
    mut take: impl FnMut(Piece<'_>) -> io::Result<()>,
) -> Result<u64, DumpEndedError> {
    let paused = target.pause();
    let vcpus = paused.vcpu_states();
    let vcpus = vcpus.map_err(DumpEndedError::Registers)?;
    let inside = in_detours(target, &vcpus);
    let guest = describe(target, vcpus, inside);
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
