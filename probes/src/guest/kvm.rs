//! A live machine behind the engine's traits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use introspect::{Gpa, Gva, PagingState, PhysMemory, Unreadable};
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, VolatileMemory,
};
use vmm::{
    DetourSize, Exception, HardwareBreakpoints, PageRange, PausedGuard, StepEnd, StoppedVcpu,
    TrapHandler,
};

use super::{GuestError, GuestMemory, Paused, Stepped, SystemState, Unwritable, Vcpu};

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

    fn ranges(&self) -> Vec<Range<Gpa>> {
        let range = |region: &vm_memory::GuestRegionMmap| {
            let start = region.start_addr().0;
            Gpa(start)..Gpa(start + region.len())
        };
        self.0.iter().map(range).collect()
    }
}

/// A stopped vCPU.
#[derive(Debug)]
pub(crate) struct KvmVcpu<'a, 'v>(pub(crate) &'a mut StoppedVcpu<'v>);

impl KvmVcpu<'_, '_> {
    /// Executes the one instruction at RIP, which needs every other vCPU paused. What the machine traps for on the
    /// way goes to `handler`.
    pub(crate) fn step(
        &mut self,
        paused: &PausedGuard<'_>,
        handler: &dyn TrapHandler,
    ) -> Result<Stepped, GuestError> {
        Ok(match self.0.step(paused, handler)? {
            StepEnd::Done => Stepped::Done,
            StepEnd::Diverted => Stepped::Diverted,
            StepEnd::MachineEnded => Stepped::Ended,
        })
    }
}

const CR0_WP: u64 = 1 << 16;
const CR4_SMAP: u64 = 1 << 21;
const CR4_PKE_PKS: u64 = (1 << 22) | (1 << 24);

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

    fn xcr0(&mut self) -> Result<u64, GuestError> {
        Ok(self.0.xcr0()?)
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

    fn inject_page_fault(&mut self, address: Gva, error_code: u32) -> Result<(), GuestError> {
        Ok(self.0.inject(Exception {
            vector: 14,
            error_code: Some(error_code),
            fault_address: Some(address.0),
        })?)
    }
}

impl Paused for PausedGuard<'_> {
    fn set_read_only(&self, ranges: &[PageRange]) -> Result<(), GuestError> {
        Ok(PausedGuard::set_read_only(self, ranges)?)
    }

    fn map_detour(&self, size: DetourSize) -> Result<(Gpa, Arc<dyn GuestMemory>), GuestError> {
        let detour = PausedGuard::map_detour(self, size)?;
        let memory = Arc::new(KvmMemory(detour.memory().clone()));
        Ok((Gpa(detour.gpa().0), memory))
    }

    fn unmap_detour(&self) -> Result<(), GuestError> {
        Ok(PausedGuard::unmap_detour(self)?)
    }

    fn move_vcpus(&self, destinations: BTreeMap<u64, u64>) {
        PausedGuard::move_vcpus(self, destinations);
    }

    fn vcpus_have_moved(&self) -> bool {
        PausedGuard::vcpus_have_moved(self)
    }

    fn set_breakpoints(&self, breakpoints: HardwareBreakpoints) {
        PausedGuard::set_breakpoints(self, breakpoints);
    }
}
