//! A stopped vCPU, as a trap handler sees the vCPU after an exit.

use address::Gva;
use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_USE_HW_BP, KVM_GUESTDBG_USE_SW_BP,
    KVM_MP_STATE_HALTED, kvm_guest_debug, kvm_mp_state, kvm_regs,
};

use super::debug_setup::{Debugging, HardwareBreakpoints};
use super::error::VcpuError;
use super::exception::{BREAKPOINT, Exception};
use super::registers::VcpuRegisters;
use super::stall::LeftAt;
use crate::machine::int3_exits::Int3Exits;
use crate::machine::shared::Shared;

/// Suppresses breakpoints on the next instruction.
pub(super) const RFLAGS_RF: u64 = 1 << 16;

/// A stopped vCPU: its registers, ports and exceptions before the next entry. Lives on the vCPU's own thread.
#[derive(Debug)]
pub struct StoppedVcpu<'a> {
    pub(super) registers: VcpuRegisters<'a>,
    pub(super) shared: &'a Shared,
    /// RIP at the last exit, if the exit was for a port write that KVM has not completed. If RIP is unchanged at the next
    /// entry, KVM treats the instruction at RIP as executed.
    pub(super) port_write: Option<Gva>,
    /// Time of the last exit.
    pub(super) left_at: Option<LeftAt>,
    pub(super) debugging: Debugging,
}

impl<'a> StoppedVcpu<'a> {
    /// Which vCPU, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.registers.index
    }

    /// The registers, and the interrupt blocking beside them.
    #[inline]
    pub fn registers(&mut self) -> &mut VcpuRegisters<'a> {
        &mut self.registers
    }
}

impl StoppedVcpu<'_> {
    /// Makes the guest take an exception at the present RIP at the next entry.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn inject(&mut self, exception: Exception) -> Result<(), VcpuError> {
        self.abandon_port_write()?;
        if exception.is_fault() {
            // A processor sets RF in the frame of a fault, but not in the frame of an injected fault.
            let regs = self.registers.regs()?;
            self.registers.set_regs(&kvm_regs {
                rflags: regs.rflags | RFLAGS_RF,
                ..regs
            })?;
        }
        if let Some(address) = exception.fault_address {
            let mut sregs = self.registers.sregs()?;
            sregs.cr2 = address.0;
            self.registers.set_sregs(&sregs)?;
        }
        let mut events = self.registers.events()?;
        events.exception.injected = 1;
        events.exception.pending = 0;
        events.exception.nr = exception.vector;
        events.exception.has_error_code = u8::from(exception.error_code.is_some());
        events.exception.error_code = exception.error_code.unwrap_or(0);
        self.registers.injected_breakpoint = match exception.vector {
            BREAKPOINT => Some(self.registers.rip()?),
            _ => None,
        };
        self.registers.set_events(events)
    }

    /// Injects the #BP of an `int3` at `at`: an `int3` of the guest, or an `int3` that the guest would have executed without
    /// the VMM. The vCPU is at `at`, and takes #BP as if it had executed the `int3`. RF in the frame is clear, as after
    /// every executed instruction. With RF set, the handler would return with RF, and no debug register would fire at the
    /// return address.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn reinject_breakpoint(&mut self, at: Gva) -> Result<(), VcpuError> {
        let mut regs = self.registers.regs()?;
        regs.rip = self.shared.facts.breakpoint_injection.rip_for(at).0;
        regs.rflags &= !RFLAGS_RF;
        self.registers.set_regs(&regs)?;
        self.inject(Exception::BREAKPOINT)
    }

    /// Halts the vCPU at its present RIP until an interrupt arrives, as after a `hlt`. If an interrupt is already pending and
    /// IF is set, the interrupt ends the wait at once. An interrupt shadow would prevent the wake-up, so `halt` ends the shadow.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn halt(&mut self) -> Result<(), VcpuError> {
        self.registers.end_shadow()?;
        self.registers
            .fd
            .set_mp_state(kvm_mp_state {
                mp_state: KVM_MP_STATE_HALTED,
            })
            .map_err(self.registers.failed("KVM_SET_MP_STATE"))
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
            for (register, breakpoint) in debug.arch.debugreg.iter_mut().zip(breakpoints.0) {
                *register = breakpoint.map_or(0, |breakpoint| breakpoint.at().0);
            }
            // Bit 10 is always one.
            debug.arch.debugreg[7] = dr7 | 0x400;
        }
        self.debugging = Debugging {
            breakpoints: *breakpoints,
            alone,
        };
        self.registers
            .fd
            .set_guest_debug(&debug)
            .map_err(self.registers.failed("KVM_SET_GUEST_DEBUG"))
    }
}
