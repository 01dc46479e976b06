//! The engine's view of the guest: memory, read-only pages, and a vCPU stopped at a plant.
//!
//! The engine uses only these traits. `kvm` implements them for a live machine. The tests of the engine's logic use `testing`:
//! a vector of bytes and a vCPU that records each request.

mod kvm;
mod kvm_memory;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use address::{Gpa, Gva};
use introspect::insn::{Segments, System};
use introspect::{PagingState, PhysMemory};

pub use kvm::KvmVcpu;
pub use kvm_memory::KvmMemory;

/// Writable guest-physical memory.
pub trait GuestMemory: PhysMemory + Send + Sync {
    /// Writes `bytes`. At most 8 bytes that are naturally aligned are written in one piece, as a store of the guest's
    /// would be.
    ///
    /// # Errors
    ///
    /// If part of the range is not memory; then no byte has been written.
    fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unwritable>;

    /// Replaces `old` by `new` (1, 2, 4 or 8 bytes, naturally aligned) in one atomic step; `false` if the memory held another value.
    ///
    /// # Errors
    ///
    /// If the address is not memory.
    fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable>;

    /// The ranges of memory, in ascending order; whole pages.
    fn ranges(&self) -> Vec<Range<Gpa>>;

    /// An emulated instruction reads bytes of a page, from `gpa` on. What the instruction finds may be changed.
    fn on_read(&self, _gpa: Gpa, _bytes: &mut [u8]) {}

    /// Whether the byte at `gpa`, which is memory, can be written.
    fn is_writable(&self, _gpa: Gpa) -> bool {
        true
    }
}

/// A failed write to guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot write {len} bytes of guest-physical memory at {gpa}")]
pub struct Unwritable {
    /// The address.
    pub gpa: Gpa,
    /// The number of bytes.
    pub len: usize,
}

/// An error of a vCPU or a machine; the machine cannot run on.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A request about a vCPU.
    #[error(transparent)]
    Vcpu(#[from] vmm::VcpuError),
    /// Running a vCPU.
    #[error(transparent)]
    Run(#[from] vmm::RunError),
    /// The machine's detour memory.
    #[error(transparent)]
    Detour(#[from] vmm::DetourMapError),
    /// The machine's memory slots.
    #[error(transparent)]
    Slots(#[from] vmm::SlotError),
    /// The machine's protected pages.
    #[error(transparent)]
    Protect(#[from] vmm::ProtectError),
    /// Memory.
    #[error(transparent)]
    Write(#[from] Unwritable),
    /// Memory.
    #[error(transparent)]
    Read(#[from] introspect::Unreadable),
    /// Made by a test.
    #[cfg(any(test, feature = "testing"))]
    #[error("request {0} fails, as the test wants")]
    Injected(usize),
}

/// A fault that the probed instruction raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionFault {
    /// The exception's vector: 14 for a page fault.
    pub vector: u8,
    /// The error code; zero for exceptions without an error code.
    pub error_code: u32,
    /// CR2 for a page fault; zero for other exceptions.
    pub address: Gva,
}

/// How far one vCPU runs alone.
#[derive(Clone, Copy, Debug)]
pub enum To<'a> {
    /// One instruction; the vCPU stops at any of these addresses. Debug registers are off, but for addresses of programs.
    Next(&'a [Gva]),
    /// A function; the vCPU stops at the return address.
    Return(Gva),
}

impl To<'_> {
    /// The addresses at which the vCPU stops.
    pub fn stops(&self) -> &[Gva] {
        match self {
            Self::Next(stops) => stops,
            Self::Return(stop) => std::slice::from_ref(stop),
        }
    }
}

/// How the run of one vCPU alone ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// The vCPU is about to execute this stop.
    At(Gva),
    /// The vCPU reached no stop within the time limit.
    Nowhere,
    /// The machine has ended.
    Ended,
}

/// The registers beyond the general ones that are needed to step over an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemState {
    /// How addresses are translated.
    pub paging: PagingState,
    /// Segments and descriptor tables.
    pub system: System,
    /// Privilege level, 0 to 3.
    pub privilege: u8,
    /// CR0.WP: writes of ring 0 respect read-only pages.
    pub write_protect: bool,
    /// CR4.SMAP: ring 0 may not touch pages of ring 3, unless RFLAGS.AC is set.
    pub smap: bool,
    /// CR4.PKE or CR4.PKS: protection keys are in force.
    pub protection_keys: bool,
}

/// A vCPU stopped at a plant. The vCPU lives on its own thread, and does not run while borrowed.
pub trait Vcpu {
    /// The number of the vCPU, from 0.
    fn index(&self) -> usize;

    /// The general registers.
    ///
    /// # Errors
    ///
    /// If the registers cannot be read.
    fn regs(&mut self) -> Result<vmm::kvm_regs, GuestError>;

    /// Sets the general registers.
    ///
    /// # Errors
    ///
    /// If the registers cannot be set.
    fn set_regs(&mut self, regs: &vmm::kvm_regs) -> Result<(), GuestError>;

    /// The other registers needed by the emulator.
    ///
    /// # Errors
    ///
    /// If the registers cannot be read.
    fn system_state(&mut self) -> Result<SystemState, GuestError>;

    /// Sets CS, SS, DS and ES.
    ///
    /// # Errors
    ///
    /// If the segments cannot be set.
    fn set_segments(&mut self, segments: &Segments) -> Result<(), GuestError>;

    /// A model-specific register.
    ///
    /// # Errors
    ///
    /// If the register cannot be read.
    fn read_msr(&mut self, index: u32) -> Result<u64, GuestError>;

    /// Sets model-specific registers, given as index and value.
    ///
    /// # Errors
    ///
    /// If a register cannot be set.
    fn write_msrs(&mut self, registers: &[(u32, u64)]) -> Result<(), GuestError>;

    /// The interrupt shadow and the blocking of NMIs.
    ///
    /// # Errors
    ///
    /// If the state cannot be read.
    fn blocking(&mut self) -> Result<vmm::Blocking, GuestError>;

    /// Sets the interrupt shadow and the blocking of NMIs.
    ///
    /// # Errors
    ///
    /// If the state cannot be set.
    fn set_blocking(&mut self, blocking: vmm::Blocking) -> Result<(), GuestError>;

    /// The vector of an exception or interrupt that KVM delivers again at the next entry, in front of the instruction at RIP, if any.
    ///
    /// # Errors
    ///
    /// If the state cannot be read.
    fn undelivered_event(&mut self) -> Result<Option<u8>, GuestError>;

    /// Halts the vCPU until an interrupt arrives, as behind a `hlt`.
    ///
    /// # Errors
    ///
    /// If the vCPU cannot be halted.
    fn halt(&mut self) -> Result<(), GuestError>;

    /// PKRU, two bits a protection key; 0 if the processor has no keys.
    ///
    /// # Errors
    ///
    /// If the register cannot be read.
    fn pkru(&mut self) -> Result<u32, GuestError>;

    /// XCR0; 0 if the processor has no XCR0.
    ///
    /// # Errors
    ///
    /// If the register cannot be read.
    fn xcr0(&mut self) -> Result<u64, GuestError>;

    /// Writes `data` to a port, as the guest's `out` would have.
    fn write_port(&mut self, port: u16, data: &[u8]);

    /// Whether the port write with which the vCPU exited belongs to an `outs` in front of RIP, and not to the instruction at RIP.
    ///
    /// # Errors
    ///
    /// If KVM cannot be entered.
    fn is_behind_outs(&mut self) -> Result<bool, GuestError>;

    /// Reads a port, as the guest's `in` would have.
    fn read_port(&mut self, port: u16, data: &mut [u8]);

    /// Injects #BP, as if the guest had executed an `int3` at `at`.
    ///
    /// # Errors
    ///
    /// If the exception cannot be injected.
    fn inject_breakpoint(&mut self, at: Gva) -> Result<(), GuestError>;

    /// The guest's own debug registers.
    ///
    /// # Errors
    ///
    /// If the registers cannot be read.
    fn debug_registers(&mut self) -> Result<vmm::kvm_debugregs, GuestError>;

    /// Injects #DB in front of the instruction at RIP, as if the debug registers in `fired`, bits 0 to 3, had fired.
    ///
    /// # Errors
    ///
    /// If the exception cannot be injected.
    fn inject_own_breakpoint(&mut self, fired: u64) -> Result<(), GuestError>;

    /// Injects `fault` at the present RIP.
    ///
    /// # Errors
    ///
    /// If the exception cannot be injected.
    fn inject(&mut self, fault: InstructionFault) -> Result<(), GuestError>;

    /// The system registers.
    ///
    /// # Errors
    ///
    /// If the registers cannot be read.
    fn sregs(&mut self) -> Result<vmm::kvm_sregs, GuestError>;

    /// Sets the system registers.
    ///
    /// # Errors
    ///
    /// If the registers cannot be set.
    fn set_sregs(&mut self, sregs: &vmm::kvm_sregs) -> Result<(), GuestError>;
}

/// A machine whose vCPUs are all paused, except the vCPU on whose thread the value is used.
pub trait Paused {
    /// The number of vCPUs, vCPUs not yet started included.
    fn vcpus(&self) -> usize;

    /// Makes exactly these pages of RAM read-only for the guest. The ranges are sorted and disjoint.
    ///
    /// # Errors
    ///
    /// If KVM refuses the memory slots.
    fn set_read_only(&self, ranges: &[vmm::PageRange]) -> Result<(), GuestError>;

    /// Protects exactly these pages of RAM: each access of the guest that the protection names exits before it takes place.
    ///
    /// # Errors
    ///
    /// If a page is not RAM, or the host or KVM refuses.
    fn protect_pages(&self, pages: &BTreeMap<Gpa, vmm::Protection>) -> Result<(), GuestError>;

    /// Lets the guest access the protected pages without an exit, or protects the pages again.
    ///
    /// # Errors
    ///
    /// If the host refuses.
    fn lift_protection(&self, lifted: bool) -> Result<(), GuestError>;

    /// Maps zeroed memory into the guest's physical address space, far above RAM; returns the address and the memory. The guest cannot
    /// write the first part. If the memory exists already, the existing memory is returned.
    ///
    /// # Errors
    ///
    /// If the memory cannot be mapped.
    fn map_detour(&self, size: vmm::DetourSize) -> Result<(Gpa, Arc<dyn GuestMemory>), GuestError>;

    /// The RIP of each started vCPU, as of its last VM exit. A trap not yet answered may redirect the vCPU.
    fn vcpu_rips(&self) -> Vec<Gva>;

    /// The registers of all vCPUs, as of their last VM exit.
    ///
    /// # Errors
    ///
    /// If KVM refuses a request.
    fn vcpu_states(&self) -> Result<Vec<vmm::VcpuState>, GuestError>;

    /// Whether a vCPU handles an NMI: the NMI may have arrived between any two instructions.
    fn is_in_nmi(&self) -> bool;

    /// Sets the breakpoints of all vCPUs.
    fn set_breakpoints(&self, breakpoints: vmm::HardwareBreakpoints);
}
