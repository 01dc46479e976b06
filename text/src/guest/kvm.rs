//! The engine's traits, implemented for a live machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use address::{Gpa, Gva};
use introspect::PagingState;
use introspect::idt::pushes_error_code;
use introspect::insn::{DescriptorTable, SegmentRegister, Segments, System};
use vmm::{
    Alone, AloneBreakpoints, AloneEnd, DetourSize, Exception, HardwareBreakpoints, PageRange,
    PausedGuard, StoppedVcpu, TrapHandler,
};

use super::{
    GuestError, GuestMemory, InstructionFault, KvmMemory, Paused, Ran, SystemState, To, Vcpu,
};

/// A stopped vCPU.
#[derive(Debug)]
pub struct KvmVcpu<'a, 'v>(pub &'a mut StoppedVcpu<'v>);

impl KvmVcpu<'_, '_> {
    /// Runs the vCPU until it reaches a stop, with all other vCPUs paused. `handler` handles the machine's traps on the way.
    pub fn run_alone(
        &mut self,
        paused: &PausedGuard<'_>,
        handler: &dyn TrapHandler,
        to: To<'_>,
    ) -> Result<Ran, GuestError> {
        let (limit, breakpoints) = match to {
            To::Next(_) => (INSTRUCTION_LIMIT, AloneBreakpoints::ProgramStops),
            To::Return(_) => (FUNCTION_LIMIT, AloneBreakpoints::Kept),
        };
        let alone = Alone {
            stops: to.stops(),
            limit,
            breakpoints,
        };
        Ok(match self.0.run_alone(paused, handler, &alone)? {
            AloneEnd::At(at) => Ran::At(at),
            AloneEnd::TimedOut => Ran::Nowhere,
            AloneEnd::MachineEnded => Ran::Ended,
        })
    }
}

/// Longer than any instruction takes that does not wait. A vCPU that exceeds the limit is at an unexpected address.
const INSTRUCTION_LIMIT: Duration = Duration::from_millis(5);
/// Longer than a function takes that decodes another function and does not wait, even if the whole machine is emulated.
const FUNCTION_LIMIT: Duration = Duration::from_millis(200);

const CR0_WP: u64 = 1 << 16;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_SMAP: u64 = 1 << 21;
const CR4_PKE_PKS: u64 = (1 << 22) | (1 << 24);
const PAGE_FAULT: u8 = 14;
const EFER_SCE: u64 = 1;

/// The emulator's view of KVM's system registers.
fn system(sregs: &vmm::kvm_sregs) -> System {
    System {
        segments: Segments {
            cs: from_kvm(&sregs.cs),
            ss: from_kvm(&sregs.ss),
            ds: from_kvm(&sregs.ds),
            es: from_kvm(&sregs.es),
            fs: from_kvm(&sregs.fs),
            gs: from_kvm(&sregs.gs),
        },
        gdt: DescriptorTable {
            base: sregs.gdt.base,
            limit: sregs.gdt.limit.into(),
        },
        ldt: (sregs.ldt.unusable == 0 && sregs.ldt.present != 0).then_some(DescriptorTable {
            base: sregs.ldt.base,
            limit: sregs.ldt.limit,
        }),
        fast_calls: sregs.efer & EFER_SCE != 0,
        base_instructions: sregs.cr4 & CR4_FSGSBASE != 0,
    }
}

fn from_kvm(segment: &vmm::kvm_segment) -> SegmentRegister {
    let bit = |set: u8, at: u32| u16::from(set & 1) << at;
    SegmentRegister {
        selector: segment.selector,
        base: segment.base,
        limit: segment.limit,
        attributes: u16::from(segment.type_ & 0xf)
            | bit(segment.s, 4)
            | u16::from(segment.dpl & 3) << 5
            | bit(segment.present, 7)
            | bit(segment.avl, 12)
            | bit(segment.l, 13)
            | bit(segment.db, 14)
            | bit(segment.g, 15),
        usable: segment.unusable == 0 && segment.present != 0,
    }
}

fn to_kvm(segment: &SegmentRegister) -> vmm::kvm_segment {
    let bit = |at: u32| u8::from(segment.attributes & (1 << at) != 0);
    let [low, _] = segment.attributes.to_le_bytes();
    vmm::kvm_segment {
        base: segment.base,
        limit: segment.limit,
        selector: segment.selector,
        type_: low & 0xf,
        present: bit(7),
        dpl: low >> 5 & 3,
        db: bit(14),
        s: bit(4),
        l: bit(13),
        g: bit(15),
        avl: bit(12),
        unusable: u8::from(!segment.usable),
        padding: 0,
    }
}

impl Vcpu for KvmVcpu<'_, '_> {
    fn index(&self) -> usize {
        self.0.index()
    }

    fn regs(&mut self) -> Result<vmm::kvm_regs, GuestError> {
        Ok(self.0.registers().regs()?)
    }

    fn set_regs(&mut self, regs: &vmm::kvm_regs) -> Result<(), GuestError> {
        Ok(self.0.registers().set_regs(regs)?)
    }

    fn system_state(&mut self) -> Result<SystemState, GuestError> {
        let sregs = self.0.registers().sregs()?;
        Ok(SystemState {
            paging: PagingState {
                cr0: sregs.cr0,
                cr3: sregs.cr3,
                cr4: sregs.cr4,
                efer: sregs.efer,
            },
            system: system(&sregs),
            privilege: sregs.ss.dpl,
            write_protect: sregs.cr0 & CR0_WP != 0,
            smap: sregs.cr4 & CR4_SMAP != 0,
            protection_keys: sregs.cr4 & CR4_PKE_PKS != 0,
        })
    }

    fn set_segments(&mut self, segments: &Segments) -> Result<(), GuestError> {
        let mut sregs = self.0.registers().sregs()?;
        for (held, wanted) in [
            (&mut sregs.cs, &segments.cs),
            (&mut sregs.ss, &segments.ss),
            (&mut sregs.ds, &segments.ds),
            (&mut sregs.es, &segments.es),
        ] {
            // An unchanged segment goes back exactly as KVM reported it.
            if from_kvm(held) != *wanted {
                *held = to_kvm(wanted);
            }
        }
        Ok(self.0.registers().set_sregs(&sregs)?)
    }

    fn read_msr(&mut self, index: u32) -> Result<u64, GuestError> {
        Ok(self.0.registers().read_msr(index)?)
    }

    fn write_msrs(&mut self, registers: &[(u32, u64)]) -> Result<(), GuestError> {
        Ok(self.0.registers().write_msrs(registers)?)
    }

    fn blocking(&mut self) -> Result<vmm::Blocking, GuestError> {
        Ok(self.0.registers().blocking()?)
    }

    fn set_blocking(&mut self, blocking: vmm::Blocking) -> Result<(), GuestError> {
        Ok(self.0.registers().set_blocking(blocking)?)
    }

    fn undelivered_event(&mut self) -> Result<Option<u8>, GuestError> {
        Ok(self.0.registers().undelivered_event()?)
    }

    fn halt(&mut self) -> Result<(), GuestError> {
        Ok(self.0.halt()?)
    }

    fn pkru(&mut self) -> Result<u32, GuestError> {
        Ok(self.0.registers().pkru()?)
    }

    fn xcr0(&mut self) -> Result<u64, GuestError> {
        Ok(self.0.registers().xcr0()?)
    }

    fn write_port(&mut self, port: u16, data: &[u8]) {
        self.0.write_port(port, data);
    }

    fn read_port(&mut self, port: u16, data: &mut [u8]) {
        self.0.read_port(port, data);
    }

    fn is_behind_outs(&mut self) -> Result<bool, GuestError> {
        Ok(self.0.is_behind_outs()?)
    }

    fn inject_breakpoint(&mut self, at: Gva) -> Result<(), GuestError> {
        Ok(self.0.reinject_breakpoint(at)?)
    }

    fn debug_registers(&mut self) -> Result<vmm::kvm_debugregs, GuestError> {
        Ok(self.0.registers().debug_registers()?)
    }

    fn inject_own_breakpoint(&mut self, fired: u64) -> Result<(), GuestError> {
        Ok(self.0.inject_own_breakpoint(fired)?)
    }

    fn inject(&mut self, fault: InstructionFault) -> Result<(), GuestError> {
        Ok(self.0.inject(Exception {
            vector: fault.vector,
            error_code: pushes_error_code(fault.vector).then_some(fault.error_code),
            fault_address: (fault.vector == PAGE_FAULT).then_some(fault.address),
        })?)
    }

    fn sregs(&mut self) -> Result<vmm::kvm_sregs, GuestError> {
        Ok(self.0.registers().sregs()?)
    }

    fn set_sregs(&mut self, sregs: &vmm::kvm_sregs) -> Result<(), GuestError> {
        Ok(self.0.registers().set_sregs(sregs)?)
    }
}

impl Paused for PausedGuard<'_> {
    fn vcpus(&self) -> usize {
        PausedGuard::vcpus(self)
    }

    fn set_read_only(&self, ranges: &[PageRange]) -> Result<(), GuestError> {
        Ok(PausedGuard::set_read_only(self, ranges)?)
    }

    fn protect_pages(&self, pages: &BTreeMap<Gpa, vmm::Protection>) -> Result<(), GuestError> {
        Ok(PausedGuard::protect_pages(self, pages)?)
    }

    fn lift_protection(&self, lifted: bool) -> Result<(), GuestError> {
        Ok(PausedGuard::lift_protection(self, lifted)?)
    }

    fn map_detour(&self, size: DetourSize) -> Result<(Gpa, Arc<dyn GuestMemory>), GuestError> {
        let detour = PausedGuard::map_detour(self, size)?;
        let memory = Arc::new(KvmMemory(detour.memory().clone()));
        Ok((detour.gpa(), memory))
    }

    fn vcpu_rips(&self) -> Vec<Gva> {
        PausedGuard::vcpu_rips(self)
    }

    fn vcpu_states(&self) -> Result<Vec<vmm::VcpuState>, GuestError> {
        Ok(PausedGuard::vcpu_states(self)?)
    }

    fn is_in_nmi(&self) -> bool {
        PausedGuard::is_in_nmi(self)
    }

    fn set_breakpoints(&self, breakpoints: HardwareBreakpoints) {
        PausedGuard::set_breakpoints(self, breakpoints);
    }
}
