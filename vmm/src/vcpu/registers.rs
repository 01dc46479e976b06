//! The registers of a stopped vCPU.

use std::arch::x86_64::__cpuid_count;

use address::Gva;
use kvm_bindings::{KVM_SYNC_X86_REGS, kvm_debugregs, kvm_regs, kvm_sregs};
use kvm_ioctls::VcpuFd;

use super::error::VcpuError;

/// The CPUID leaf with the places of XSAVE's components, and the number of PKRU.
const XSAVE_LEAF: u32 = 0xd;
const PKRU_COMPONENT: u32 = 9;

/// The registers of a stopped vCPU, and the events that KVM holds beside them: interrupt blocking and an injected exception.
///
/// If KVM has [`kvm_bindings::KVM_CAP_SYNC_REGS`], general registers and events come with the exit, without a system call.
/// Changed general registers are written back on the next entry. Every other request to KVM costs at least an ioctl.
#[derive(Debug)]
pub struct VcpuRegisters<'a> {
    pub(super) fd: &'a mut VcpuFd,
    pub(super) index: usize,
    /// Whether general registers and events come with each exit.
    pub(super) sync_regs: bool,
    /// The RIP of an injected #BP that the guest has not taken. KVM does not report the #BP.
    pub(super) injected_breakpoint: Option<Gva>,
    /// The system registers, if KVM was asked for them, and nothing can have changed them since.
    known_sregs: Option<kvm_sregs>,
    /// The guest's debug registers, if KVM was asked for them since the guest has run.
    known_debug_registers: Option<kvm_debugregs>,
}

impl<'a> VcpuRegisters<'a> {
    pub(super) fn new(fd: &'a mut VcpuFd, index: usize, sync_regs: bool) -> Self {
        if sync_regs {
            fd.set_sync_valid_reg(kvm_ioctls::SyncReg::Register);
            fd.set_sync_valid_reg(kvm_ioctls::SyncReg::VcpuEvents);
        }
        Self {
            fd,
            index,
            sync_regs,
            injected_breakpoint: None,
            known_sregs: None,
            known_debug_registers: None,
        }
    }

    pub(super) fn failed(
        &self,
        request: &'static str,
    ) -> impl FnOnce(kvm_ioctls::Error) -> VcpuError {
        let vcpu = self.index;
        move |source| VcpuError {
            request,
            vcpu,
            source,
        }
    }

    /// RIP alone.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    #[inline]
    pub fn rip(&mut self) -> Result<Gva, VcpuError> {
        if self.sync_regs {
            Ok(Gva(self.fd.sync_regs_mut().regs.rip))
        } else {
            Ok(Gva(self.regs()?.rip))
        }
    }

    /// The general registers, RIP and RFLAGS.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    #[inline]
    pub fn regs(&mut self) -> Result<kvm_regs, VcpuError> {
        if self.sync_regs {
            Ok(self.fd.sync_regs_mut().regs)
        } else {
            self.fd.get_regs().map_err(self.failed("KVM_GET_REGS"))
        }
    }

    /// Sets the general registers, RIP and RFLAGS.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    #[inline]
    pub fn set_regs(&mut self, regs: &kvm_regs) -> Result<(), VcpuError> {
        if self.sync_regs {
            self.fd.sync_regs_mut().regs = *regs;
            self.fd.get_kvm_run().kvm_dirty_regs |= u64::from(KVM_SYNC_X86_REGS);
            Ok(())
        } else {
            self.fd.set_regs(regs).map_err(self.failed("KVM_SET_REGS"))
        }
    }

    /// The system registers. KVM is asked once for an exit, unless the VMM changes them.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    pub fn sregs(&mut self) -> Result<kvm_sregs, VcpuError> {
        if let Some(sregs) = self.known_sregs {
            return Ok(sregs);
        }
        let sregs = self.fd.get_sregs().map_err(self.failed("KVM_GET_SREGS"))?;
        self.known_sregs = Some(sregs);
        Ok(sregs)
    }

    /// The system registers may change now.
    pub(super) fn forget_sregs(&mut self) {
        self.known_sregs = None;
    }

    /// The guest is about to run: each register may change now.
    pub(super) fn forget_registers(&mut self) {
        self.forget_sregs();
        self.known_debug_registers = None;
    }

    /// The guest's own debug registers. KVM is asked once for an exit.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    pub fn debug_registers(&mut self) -> Result<kvm_debugregs, VcpuError> {
        if let Some(registers) = self.known_debug_registers {
            return Ok(registers);
        }
        let registers = self.fd.get_debug_regs();
        let registers = registers.map_err(self.failed("KVM_GET_DEBUGREGS"))?;
        self.known_debug_registers = Some(registers);
        Ok(registers)
    }

    pub(super) fn set_debug_registers(
        &mut self,
        registers: &kvm_debugregs,
    ) -> Result<(), VcpuError> {
        self.known_debug_registers = None;
        self.fd
            .set_debug_regs(registers)
            .map_err(self.failed("KVM_SET_DEBUGREGS"))
    }

    /// Sets the system registers: the result of [`VcpuRegisters::sregs`], changed. The bitmap of interrupts in the registers
    /// holds the interrupt that KVM is about to deliver, if any, and is passed back unchanged.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn set_sregs(&mut self, sregs: &kvm_sregs) -> Result<(), VcpuError> {
        self.forget_sregs();
        self.fd
            .set_sregs(sregs)
            .map_err(self.failed("KVM_SET_SREGS"))
    }

    /// PKRU: the rights of the protection keys of pages, two bits a key. 0 if the processor has no keys.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    pub fn pkru(&mut self) -> Result<u32, VcpuError> {
        let xsave = self.fd.get_xsave().map_err(self.failed("KVM_GET_XSAVE"))?;
        // The layout of the standard format is the host's.
        let at = __cpuid_count(XSAVE_LEAF, PKRU_COMPONENT).ebx as usize / 4;
        // KVM writes the value also if the header says that the component has its first value, 0.
        let value = xsave.region.get(at).copied().filter(|_| at > 0);
        Ok(value.unwrap_or(0))
    }

    /// XCR0: the extended registers that the guest has enabled. 0 if the vCPU has no XCR0.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    pub fn xcr0(&mut self) -> Result<u64, VcpuError> {
        let xcrs = self.fd.get_xcrs().map_err(self.failed("KVM_GET_XCRS"))?;
        let known = xcrs.xcrs.iter().take(xcrs.nr_xcrs as usize);
        let found = known.into_iter().find(|xcr| xcr.xcr == 0);
        Ok(found.map_or(0, |xcr| xcr.value))
    }
}
