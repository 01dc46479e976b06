//! The guest as the engine reaches it: memory, the pages that are read-only, and a vCPU that stands at a plant.
//!
//! The engine is written against these traits. `kvm` implements them for a live machine; the tests of the engine's
//! logic implement them with a vector of bytes and a vCPU that records what is done to it.

#[cfg(test)]
pub(crate) mod fake;
mod kvm;

use std::ops::Range;
use std::sync::Arc;

use introspect::insn::{Segments, System};
use introspect::{Gpa, Gva, PagingState, PhysMemory};

use crate::handler::InstructionFault;

pub(crate) use kvm::{KvmMemory, KvmVcpu};

/// Guest-physical memory that can be written.
pub trait GuestMemory: PhysMemory + Send + Sync {
    /// Writes `bytes`. At most 8 bytes that are naturally aligned are written in one piece, as a store of the guest's
    /// would be.
    ///
    /// # Errors
    ///
    /// When it is not all memory; then none of it has been written.
    fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), Unwritable>;

    /// Replaces `old` by `new` (1, 2, 4 or 8 bytes, naturally aligned) in one atomic step; `false` if the memory
    /// held something else.
    ///
    /// # Errors
    ///
    /// When it is not memory.
    fn compare_exchange(&self, gpa: Gpa, old: &[u8], new: &[u8]) -> Result<bool, Unwritable>;

    /// Where there is memory, in ascending order; whole pages.
    fn ranges(&self) -> Vec<Range<Gpa>>;
}

/// Guest-physical memory that could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot write {len} bytes of guest-physical memory at {gpa}")]
pub struct Unwritable {
    /// Where.
    pub gpa: Gpa,
    /// How many bytes.
    pub len: usize,
}

/// Something went wrong with a vCPU or a machine; the machine cannot run on.
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
    /// Memory.
    #[error(transparent)]
    Write(#[from] Unwritable),
    /// Memory.
    #[error(transparent)]
    Read(#[from] introspect::Unreadable),
    /// Made by a test.
    #[cfg(test)]
    #[error("request {0} fails, as the test wants")]
    Injected(usize),
}

/// How far one vCPU runs alone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To<'a> {
    /// One instruction, which leads to one of these. Debug registers are off.
    Next(&'a [Gva]),
    /// A function, which returns here.
    Return(Gva),
}

#[cfg(test)]
impl To<'_> {
    /// Where it stops.
    pub(crate) fn stops(&self) -> &[Gva] {
        match self {
            Self::Next(stops) => stops,
            Self::Return(stop) => std::slice::from_ref(stop),
        }
    }
}

/// How the run of one vCPU alone ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// It is about to execute this stop.
    At(Gva),
    /// It came to none in time.
    Nowhere,
    /// The machine has ended.
    Ended,
}

/// The registers beyond the general ones that going past an instruction needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SystemState {
    /// How addresses are translated.
    pub paging: PagingState,
    /// Segments and descriptor tables.
    pub system: System,
    /// Privilege level, 0 to 3.
    pub privilege: u8,
    /// CR0.WP: writes of ring 0 heed read-only pages.
    pub write_protect: bool,
    /// CR4.SMAP: ring 0 may not touch pages of ring 3, unless RFLAGS.AC is set.
    pub smap: bool,
    /// CR4.PKE or CR4.PKS: protection keys are in force.
    pub protection_keys: bool,
}

/// A vCPU that has stopped at a plant. Lives on its own thread; nothing runs it while it is borrowed.
pub(crate) trait Vcpu {
    /// Which one, from 0.
    fn index(&self) -> usize;

    /// The general registers.
    ///
    /// # Errors
    ///
    /// When they cannot be had.
    fn regs(&mut self) -> Result<vmm::kvm_regs, GuestError>;

    /// Sets the general registers.
    ///
    /// # Errors
    ///
    /// When they cannot be set.
    fn set_regs(&mut self, regs: &vmm::kvm_regs) -> Result<(), GuestError>;

    /// The rest of what the emulator needs.
    ///
    /// # Errors
    ///
    /// When it cannot be had.
    fn system_state(&mut self) -> Result<SystemState, GuestError>;

    /// Sets CS, SS, DS and ES.
    ///
    /// # Errors
    ///
    /// When they cannot be set.
    fn set_segments(&mut self, segments: &Segments) -> Result<(), GuestError>;

    /// A model-specific register.
    ///
    /// # Errors
    ///
    /// When it cannot be had.
    fn read_msr(&mut self, index: u32) -> Result<u64, GuestError>;

    /// Sets model-specific registers, given as index and value.
    ///
    /// # Errors
    ///
    /// When one cannot be set.
    fn write_msrs(&mut self, registers: &[(u32, u64)]) -> Result<(), GuestError>;

    /// What holds interrupts back.
    ///
    /// # Errors
    ///
    /// When it cannot be had.
    fn blocking(&mut self) -> Result<vmm::Blocking, GuestError>;

    /// Sets what holds interrupts back.
    ///
    /// # Errors
    ///
    /// When it cannot be set.
    fn set_blocking(&mut self, blocking: vmm::Blocking) -> Result<(), GuestError>;

    /// The vCPU waits for an interrupt, as behind a `hlt`.
    ///
    /// # Errors
    ///
    /// When it cannot be made to.
    fn halt(&mut self) -> Result<(), GuestError>;

    /// XCR0; 0 where there is none.
    ///
    /// # Errors
    ///
    /// When it cannot be had.
    fn xcr0(&mut self) -> Result<u64, GuestError>;

    /// Writes `data` to a port, as the guest's `out` would have.
    fn write_port(&mut self, port: u16, data: &[u8]);

    /// Whether the port write that the vCPU has left the guest for is that of an `outs` in front of RIP, and not of the
    /// instruction at RIP.
    ///
    /// # Errors
    ///
    /// When it cannot be found out.
    fn is_behind_outs(&mut self) -> Result<bool, GuestError>;

    /// Reads a port, as the guest's `in` would have.
    fn read_port(&mut self, port: u16, data: &mut [u8]);

    /// The guest takes #BP as if it had executed an `int3` at `at`.
    ///
    /// # Errors
    ///
    /// When it cannot be injected.
    fn inject_breakpoint(&mut self, at: Gva) -> Result<(), GuestError>;

    /// The guest takes this fault at its present RIP.
    ///
    /// # Errors
    ///
    /// When it cannot be injected.
    fn inject(&mut self, fault: InstructionFault) -> Result<(), GuestError>;

    /// The system registers.
    ///
    /// # Errors
    ///
    /// When they cannot be had.
    fn sregs(&mut self) -> Result<vmm::kvm_sregs, GuestError>;

    /// Sets the system registers.
    ///
    /// # Errors
    ///
    /// When they cannot be set.
    fn set_sregs(&mut self, sregs: &vmm::kvm_sregs) -> Result<(), GuestError>;
}

/// A machine none of whose vCPUs runs, except the one on whose thread this is used.
pub trait Paused {
    /// How many vCPUs the machine has, those included that have not been started.
    fn vcpus(&self) -> usize;

    /// Makes exactly these pages of RAM read-only for the guest; sorted and disjoint.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    fn set_read_only(&self, ranges: &[vmm::PageRange]) -> Result<(), GuestError>;

    /// Puts memory that is all zero into the guest's physical address space, far above its RAM: where, and the memory.
    /// The first part of it the guest cannot write. If there is such memory already, that.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    fn map_detour(&self, size: vmm::DetourSize) -> Result<(Gpa, Arc<dyn GuestMemory>), GuestError>;

    /// Where each vCPU stands that has been started: its RIP, as it left the guest. A trap that it has yet to be
    /// answered may send it elsewhere.
    fn vcpu_rips(&self) -> Vec<Gva>;

    /// Whether one of them handles an NMI: it can have come between any two instructions.
    fn is_in_nmi(&self) -> bool;

    /// Sets the execution breakpoints of all vCPUs.
    fn set_breakpoints(&self, breakpoints: vmm::HardwareBreakpoints);
}
