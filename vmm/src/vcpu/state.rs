//! The registers of paused vCPUs, for a thread that runs no vCPU.
//!
//! The general registers come from the vCPU's own thread, which publishes them before it parks: only that thread knows the registers that
//! KVM gets at the next entry. The other registers come from KVM, through a second descriptor of the vCPU. A parked vCPU's thread makes no
//! request about the vCPU, so KVM's answer does not change during the pause.

#![expect(
    unsafe_code,
    reason = "kvm-ioctls makes a vCPU from a descriptor's number only"
)]

use std::os::fd::{AsRawFd as _, BorrowedFd, IntoRawFd as _};

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::{VcpuFd, VmFd};

use super::error::VcpuError;
use super::msrs::msr;

/// The registers of a paused vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VcpuState {
    /// The general registers, RIP and RFLAGS.
    pub regs: kvm_regs,
    /// Segments, descriptor tables and control registers.
    pub sregs: kvm_sregs,
    /// The base of GS that `swapgs` changes to (IA32_KERNEL_GS_BASE).
    pub kernel_gs_base: u64,
}

/// IA32_KERNEL_GS_BASE.
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;

/// Second descriptors of all vCPUs.
#[derive(Debug)]
pub(crate) struct StateReaders(Vec<VcpuFd>);

impl StateReaders {
    /// Duplicates the descriptors of `vcpus`.
    ///
    /// # Errors
    ///
    /// When this process has no descriptors or no memory left.
    pub(crate) fn new(vm: &VmFd, vcpus: &[VcpuFd]) -> Result<Self, kvm_ioctls::Error> {
        let duplicate = |vcpu: &VcpuFd| {
            // SAFETY: `vcpu` keeps the descriptor open for the whole call.
            let fd = unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) };
            let own = rustix::io::fcntl_dupfd_cloexec(fd, 3)
                .map_err(|error| kvm_ioctls::Error::new(error.raw_os_error()))?;
            // SAFETY: the descriptor is a vCPU's, open, and owned by nothing else: the line above has just made it, and
            // `into_raw_fd` gives up its owner. The new value maps a second view of `kvm_run`, which it never touches here.
            unsafe { vm.create_vcpu_from_rawfd(own.into_raw_fd()) }
        };
        Ok(Self(vcpus.iter().map(duplicate).collect::<Result<_, _>>()?))
    }

    /// The registers of all paused vCPUs; `published` are the general registers, as far as their threads have published them. A vCPU
    /// without has never been in the guest.
    ///
    /// # Errors
    ///
    /// When KVM refuses a request.
    pub(crate) fn read(&self, published: &[Option<kvm_regs>]) -> Result<Vec<VcpuState>, VcpuError> {
        let mut states = Vec::with_capacity(self.0.len());
        for (vcpu, fd) in self.0.iter().enumerate() {
            let failed = |request| {
                move |source| VcpuError {
                    request,
                    vcpu,
                    source,
                }
            };
            let regs = match published.get(vcpu).copied().flatten() {
                Some(regs) => regs,
                None => fd.get_regs().map_err(failed("KVM_GET_REGS"))?,
            };
            states.push(VcpuState {
                regs,
                sregs: fd.get_sregs().map_err(failed("KVM_GET_SREGS"))?,
                kernel_gs_base: msr(fd, MSR_KERNEL_GS_BASE).map_err(failed("KVM_GET_MSRS"))?,
            });
        }
        Ok(states)
    }
}
