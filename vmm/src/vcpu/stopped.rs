//! A stopped vCPU, as a trap handler sees the vCPU after an exit.

use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_USE_HW_BP, KVM_GUESTDBG_USE_SW_BP,
    KVM_SYNC_X86_REGS, kvm_guest_debug, kvm_regs, kvm_sregs,
};
use kvm_ioctls::VcpuFd;

use super::debug_setup::{Debugging, HardwareBreakpoints};
use super::error::VcpuError;
use super::stall::LeftAt;
use crate::machine::int3_exits::Int3Exits;
use crate::machine::shared::Shared;

/// An exception to inject at the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Vector, 0 to 31.
    pub vector: u8,
    /// Error code, for vectors with an error code.
    pub error_code: Option<u32>,
    /// CR2, for a page fault.
    pub fault_address: Option<u64>,
}

impl Exception {
    /// #BP, as an `int3` raises it.
    const BREAKPOINT: Self = Self::without_code(BREAKPOINT);
    /// #DB.
    pub(super) const DEBUG: Self = Self::without_code(DEBUG);

    const fn without_code(vector: u8) -> Self {
        Self {
            vector,
            error_code: None,
            fault_address: None,
        }
    }

    /// Whether the exception is a fault: raised before its instruction, which is executed again afterwards.
    fn is_fault(&self) -> bool {
        !matches!(
            self.vector,
            DEBUG | NMI | BREAKPOINT | OVERFLOW | DOUBLE_FAULT | MACHINE_CHECK
        )
    }
}

const DEBUG: u8 = 1;
const NMI: u8 = 2;
pub(super) const BREAKPOINT: u8 = 3;
const OVERFLOW: u8 = 4;
const DOUBLE_FAULT: u8 = 8;
const MACHINE_CHECK: u8 = 18;

/// Suppresses breakpoints on the next instruction.
pub(super) const RFLAGS_RF: u64 = 1 << 16;

/// A stopped vCPU: access to registers, events and ports before the next entry. Lives on the vCPU's own thread.
///
/// If KVM has [`kvm_bindings::KVM_CAP_SYNC_REGS`], general registers and events come with the exit, without a system call.
/// Changed general registers are written back on the next entry. Every other request to KVM costs at least an ioctl.
#[derive(Debug)]
pub struct StoppedVcpu<'a> {
    pub(super) fd: &'a mut VcpuFd,
    pub(super) index: usize,
    pub(super) shared: &'a Shared,
    /// RIP at the last exit, if the exit was for a port write that KVM has not completed. If RIP is unchanged at the next
    /// entry, KVM treats the instruction at RIP as executed.
    pub(super) port_write: Option<u64>,
    /// The RIP of an injected #BP that the guest has not taken.
    pub(super) injected_breakpoint: Option<u64>,
    /// Time of the last exit.
    pub(super) left_at: Option<LeftAt>,
    pub(super) debugging: Debugging,
}

impl StoppedVcpu<'_> {
    /// Which vCPU, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The machine's memory.
    #[must_use]
    pub fn memory(&self) -> &vm_memory::GuestMemoryMmap {
        self.shared.memory.guest()
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
    pub(super) fn rip(&mut self) -> Result<u64, VcpuError> {
        if self.shared.sync_regs {
            Ok(self.fd.sync_regs_mut().regs.rip)
        } else {
            Ok(self.regs()?.rip)
        }
    }

    /// The general registers, RIP and RFLAGS.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    #[inline]
    pub fn regs(&mut self) -> Result<kvm_regs, VcpuError> {
        if self.shared.sync_regs {
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
        if self.shared.sync_regs {
            self.fd.sync_regs_mut().regs = *regs;
            self.fd.get_kvm_run().kvm_dirty_regs |= u64::from(KVM_SYNC_X86_REGS);
            Ok(())
        } else {
            self.fd.set_regs(regs).map_err(self.failed("KVM_SET_REGS"))
        }
    }

    /// The system registers.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request.
    pub fn sregs(&mut self) -> Result<kvm_sregs, VcpuError> {
        self.fd.get_sregs().map_err(self.failed("KVM_GET_SREGS"))
    }

    /// Sets the system registers: the result of [`StoppedVcpu::sregs`], changed. The bitmap of interrupts in the registers
    /// holds the interrupt that KVM is about to deliver, if any, and is passed back unchanged.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn set_sregs(&mut self, sregs: &kvm_sregs) -> Result<(), VcpuError> {
        self.fd
            .set_sregs(sregs)
            .map_err(self.failed("KVM_SET_SREGS"))
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

    /// Makes the guest take an exception at the present RIP at the next entry.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn inject(&mut self, exception: Exception) -> Result<(), VcpuError> {
        self.abandon_port_write()?;
        if exception.is_fault() {
            // A processor sets RF in the frame of a fault, but not in the frame of an injected fault.
            let regs = self.regs()?;
            self.set_regs(&kvm_regs {
                rflags: regs.rflags | RFLAGS_RF,
                ..regs
            })?;
        }
        if let Some(address) = exception.fault_address {
            let mut sregs = self.sregs()?;
            sregs.cr2 = address;
            self.set_sregs(&sregs)?;
        }
        let mut events = self.events()?;
        events.exception.injected = 1;
        events.exception.pending = 0;
        events.exception.nr = exception.vector;
        events.exception.has_error_code = u8::from(exception.error_code.is_some());
        events.exception.error_code = exception.error_code.unwrap_or(0);
        self.injected_breakpoint = match exception.vector {
            BREAKPOINT => Some(self.rip()?),
            _ => None,
        };
        self.set_events(events)
    }

    /// Injects the #BP of an `int3` at `at`: an `int3` of the guest, or an `int3` that the guest would have executed without
    /// the VMM. The vCPU is at `at`, and takes #BP as if it had executed the `int3`. RF in the frame is clear, as after
    /// every executed instruction. With RF set, the handler would return with RF, and no debug register would fire at the
    /// return address.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn reinject_breakpoint(&mut self, at: u64) -> Result<(), VcpuError> {
        let mut regs = self.regs()?;
        regs.rip = self.shared.facts.breakpoint_injection.rip_for(at);
        regs.rflags &= !RFLAGS_RF;
        self.set_regs(&regs)?;
        self.inject(Exception::BREAKPOINT)
    }

    /// Writes `data` to a port, as the guest's `out` would have.
    pub fn write_port(&mut self, port: u16, data: &[u8]) {
        self.shared.platform.ports.write(port, data.len(), data);
    }

    /// Reads a port, as the guest's `in` would have.
    pub fn read_port(&mut self, port: u16, data: &mut [u8]) {
        self.shared.platform.ports.read(port, data.len(), data);
    }

    /// Sets the debug events that KVM intercepts on the vCPU, and whether KVM holds interrupts back.
    pub(super) fn set_debug(
        &mut self,
        breakpoints: &HardwareBreakpoints,
        alone: bool,
    ) -> Result<(), VcpuError> {
        let mut debug = kvm_guest_debug {
            control: KVM_GUESTDBG_ENABLE,
            ..Default::default()
        };
        let int3 = alone || self.shared.int3 == Int3Exits::All;
        if int3 && self.shared.facts.int3.is_usable() {
            debug.control |= KVM_GUESTDBG_USE_SW_BP;
        }
        if alone && self.shared.facts.holds_interrupts {
            debug.control |= KVM_GUESTDBG_BLOCKIRQ;
        }
        let dr7 = breakpoints.dr7();
        if dr7 != 0 {
            debug.control |= KVM_GUESTDBG_USE_HW_BP;
            for (register, address) in debug.arch.debugreg.iter_mut().zip(breakpoints.execute) {
                *register = address.unwrap_or(0);
            }
            // Bit 10 is always one.
            debug.arch.debugreg[7] = dr7 | 0x400;
        }
        self.debugging = Debugging {
            breakpoints: *breakpoints,
            alone,
        };
        self.fd
            .set_guest_debug(&debug)
            .map_err(self.failed("KVM_SET_GUEST_DEBUG"))
    }
}
