//! The model-specific registers of a stopped vCPU.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

use super::error::VcpuError;
use super::registers::VcpuRegisters;

impl VcpuRegisters<'_> {
    /// Writes model-specific registers, given as index and value, in that order.
    ///
    /// # Errors
    ///
    /// When KVM refuses a register. The registers before the refused register are written.
    pub fn write_msrs(&mut self, registers: &[(u32, u64)]) -> Result<(), VcpuError> {
        if self.set_msrs(registers)? == registers.len() {
            Ok(())
        } else {
            Err(self.failed("KVM_SET_MSRS")(kvm_ioctls::Error::new(
                libc::EINVAL,
            )))
        }
    }

    /// Carries out the MSR write of the last exit. If KVM refuses the value, the guest takes #GP at its `wrmsr`. KVM checks
    /// a write of the host like a write of the guest, for instance whether an address is canonical with 48 or 57 bits.
    ///
    /// # Errors
    ///
    /// When KVM refuses the request itself.
    pub(super) fn complete_msr_write(&mut self, index: u32, value: u64) -> Result<(), VcpuError> {
        let is_refused = self.set_msrs(&[(index, value)])? == 0;
        self.fd.get_kvm_run().__bindgen_anon_1.msr.error = u8::from(is_refused);
        Ok(())
    }

    /// Returns the number of registers that KVM has written: all before the first refused register.
    fn set_msrs(&mut self, registers: &[(u32, u64)]) -> Result<usize, VcpuError> {
        let entries: Vec<_> = registers
            .iter()
            .map(|&(index, data)| kvm_msr_entry {
                index,
                data,
                ..Default::default()
            })
            .collect();
        let msrs = Msrs::from_entries(&entries)
            .map_err(|_| self.failed("KVM_SET_MSRS")(kvm_ioctls::Error::new(libc::ENOMEM)))?;
        // Some are bases of segments, and EFER.
        self.forget_sregs();
        self.fd.set_msrs(&msrs).map_err(self.failed("KVM_SET_MSRS"))
    }

    /// Reads a model-specific register.
    ///
    /// # Errors
    ///
    /// When KVM refuses.
    pub fn read_msr(&mut self, index: u32) -> Result<u64, VcpuError> {
        msr(self.fd, index).map_err(self.failed("KVM_GET_MSRS"))
    }
}

/// Reads a model-specific register of `vcpu`.
pub(super) fn msr(vcpu: &VcpuFd, index: u32) -> Result<u64, kvm_ioctls::Error> {
    let entry = kvm_msr_entry {
        index,
        ..Default::default()
    };
    let mut msrs =
        Msrs::from_entries(&[entry]).map_err(|_| kvm_ioctls::Error::new(libc::ENOMEM))?;
    match vcpu.get_msrs(&mut msrs)? {
        1 => Ok(msrs.as_slice()[0].data),
        _ => Err(kvm_ioctls::Error::new(libc::EINVAL)),
    }
}
