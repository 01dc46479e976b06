//! A live machine behind the engine's traits.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use introspect::idt::pushes_error_code;
use introspect::{Gpa, Gva, PagingState, PhysMemory, Unreadable};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory};
use vmm::{
    Alone, AloneEnd, Exception, HardwareBreakpoints, PageRange, PausedGuard, StoppedVcpu,
    TrapHandler,
};

use super::{GuestError, GuestMemory, Paused, Ran, SystemState, Unwritable, Vcpu};
use crate::handler::InstructionFault;

/// The machine's RAM. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct KvmMemory(pub(crate) GuestMemoryMmap);

impl PhysMemory for KvmMemory {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Unreadable> {
        let len = buf.len();
        self.0
            .read_slice(buf, GuestAddress(gpa.0))
            .map_err(|_| Unreadable { gpa, len })
    }
}

impl GuestMemory for KvmMemory {
    fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unwritable> {
        let failed = Unwritable {
            gpa,
            len: bytes.len(),
        };
        if !self.0.check_range(GuestAddress(gpa.0), bytes.len()) {
            return Err(failed);
        }
        self.0
            .write_slice(bytes, GuestAddress(gpa.0))
            .map_err(|_| failed)
    }

    fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable> {
        let failed = Unwritable {
            gpa,
            len: new.len(),
        };
        let slice = self
            .0
            .get_slice(GuestAddress(gpa.0), new.len())
            .map_err(|_| failed)?;
        macro_rules! exchange {
            ($atomic:ty, $value:ty) => {{
                let place = slice.get_atomic_ref::<$atomic>(0).map_err(|_| failed)?;
                let old = <$value>::from_le_bytes(old.try_into().map_err(|_| failed)?);
                let new = <$value>::from_le_bytes(new.try_into().map_err(|_| failed)?);
                place
                    .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            }};
        }
        Ok(match new.len() {
            1 => exchange!(AtomicU8, u8),
            2 => exchange!(AtomicU16, u16),
            4 => exchange!(AtomicU32, u32),
            8 => exchange!(AtomicU64, u64),
            _ => return Err(failed),
        })
    }
}

/// A stopped vCPU.
#[derive(Debug)]
pub(crate) struct KvmVcpu<'a, 'v>(pub(crate) &'a mut StoppedVcpu<'v>);

impl KvmVcpu<'_, '_> {
    /// Executes the one instruction at RIP, up to whichever of the stops comes next. What the machine traps for on the
    /// way goes to `handler`.
    pub(crate) fn execute_one(
        &mut self,
        paused: &PausedGuard<'_>,
        handler: &dyn TrapHandler,
        stops: &[Gva],
    ) -> Result<Ran, GuestError> {
        let stops: Vec<u64> = stops.iter().map(|stop| stop.0).collect();
        let alone = Alone {
            stops: &stops,
            limit: INSTRUCTION_LIMIT,
            breakpoints: false,
        };
        Ok(match self.0.run_alone(paused, handler, &alone)? {
            AloneEnd::At(at) => Ran::At(Gva(at)),
            AloneEnd::TimedOut => Ran::Nowhere,
            AloneEnd::MachineEnded => Ran::Ended,
        })
    }
}

/// Longer than an instruction takes that does not wait; past it, the vCPU is where nobody thought of.
const INSTRUCTION_LIMIT: Duration = Duration::from_millis(5);

const CR0_WP: u64 = 1 << 16;
const CR4_SMAP: u64 = 1 << 21;
const CR4_PKE_PKS: u64 = (1 << 22) | (1 << 24);
const PAGE_FAULT: u8 = 14;

impl Vcpu for KvmVcpu<'_, '_> {
    fn index(&self) -> usize {
        self.0.index()
    }

    fn regs(&mut self) -> Result<vmm::kvm_regs, GuestError> {
        Ok(self.0.regs()?)
    }

    fn set_regs(&mut self, regs: &vmm::kvm_regs) -> Result<(), GuestError> {
        Ok(self.0.set_regs(regs)?)
    }

    fn system_state(&mut self) -> Result<SystemState, GuestError> {
        let sregs = self.0.sregs()?;
        Ok(SystemState {
            paging: PagingState {
                cr0: sregs.cr0,
                cr3: sregs.cr3,
                cr4: sregs.cr4,
                efer: sregs.efer,
            },
            fs_base: sregs.fs.base,
            gs_base: sregs.gs.base,
            privilege: sregs.ss.dpl,
            write_protect: sregs.cr0 & CR0_WP != 0,
            smap: sregs.cr4 & CR4_SMAP != 0,
            protection_keys: sregs.cr4 & CR4_PKE_PKS != 0,
        })
    }

    fn write_port(&mut self, port: u16, data: &[u8]) {
        self.0.write_port(port, data);
    }

    fn read_port(&mut self, port: u16, data: &mut [u8]) {
        self.0.read_port(port, data);
    }

    fn inject_breakpoint(&mut self, at: Gva) -> Result<(), GuestError> {
        Ok(self.0.reinject_breakpoint(at.0)?)
    }

    fn inject(&mut self, fault: InstructionFault) -> Result<(), GuestError> {
        Ok(self.0.inject(Exception {
            vector: fault.vector,
            error_code: pushes_error_code(fault.vector).then_some(fault.error_code),
            fault_address: (fault.vector == PAGE_FAULT).then_some(fault.address.0),
        })?)
    }

    fn sregs(&mut self) -> Result<vmm::kvm_sregs, GuestError> {
        Ok(self.0.sregs()?)
    }

    fn set_sregs(&mut self, sregs: &vmm::kvm_sregs) -> Result<(), GuestError> {
        Ok(self.0.set_sregs(sregs)?)
    }

    fn read_msr(&mut self, index: u32) -> Result<u64, GuestError> {
        Ok(self.0.read_msr(index)?)
    }
}

impl Paused for PausedGuard<'_> {
    fn set_read_only(&self, ranges: &[PageRange]) -> Result<(), GuestError> {
        Ok(PausedGuard::set_read_only(self, ranges)?)
    }

    fn set_breakpoints(&self, breakpoints: HardwareBreakpoints) {
        PausedGuard::set_breakpoints(self, breakpoints);
    }
}
