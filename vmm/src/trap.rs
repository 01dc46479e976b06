//! A trap: the reason of a stopped vCPU, and the outcome.

use address::{Gpa, Gva};

/// Why a vCPU stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// An `int3` is about to be executed.
    Breakpoint {
        /// Linear address of the `int3`.
        at: Gva,
    },
    /// A one-byte port write (`out dx, al`, or another form). The trap does not name the port: the
    /// address identifies a plant.
    PortWrite {
        /// Linear address of the instruction.
        at: Gva,
    },
    /// Debug registers fired: for the next instruction, or for data that the instruction in front has written.
    HardwareBreakpoint {
        /// Bits 0–3: which of DR0–DR3, of those for instructions.
        fired: u8,
        /// Bits 0–3: which of DR0–DR3, of those for data.
        written: u8,
        /// Linear address of the next instruction.
        at: Gva,
    },
    /// The guest wrote to a page in a read-only slot, of RAM or of detour memory, or to a protected page where KVM emulates the
    /// instruction. Nothing has been written: the handler decides. Registers and RIP are those behind the instruction, or behind one
    /// element of a repeated instruction. A guest write to read-only detour memory never takes effect.
    GuestWrite {
        /// Guest-physical address of the write.
        gpa: Gpa,
        /// Written bytes; the first [`Trap::GuestWrite::len`] bytes count.
        bytes: [u8; 8],
        /// 1 to 8.
        len: usize,
    },
    /// KVM emulates an instruction that reads a protected page, and has got the bytes. The registers are those in front of the instruction.
    GuestRead {
        /// Guest-physical address of the read.
        gpa: Gpa,
        /// Read bytes; the first [`Trap::GuestRead::len`] bytes count.
        bytes: [u8; 8],
        /// 1 to 8.
        len: usize,
    },
    /// The instruction at RIP, or the delivery of an event in front of the instruction
    /// ([`VcpuRegisters::undelivered_event`](crate::VcpuRegisters::undelivered_event)), makes an access to a protected page that exits, or lies
    /// on such a page. Nothing has been executed or written.
    ProtectedAccess {
        /// Linear address of the instruction.
        at: Gva,
    },
    /// The guest writes a model-specific register that the machine reports. The register is not yet written.
    MsrWrite {
        /// The register.
        index: u32,
        /// The value.
        value: u64,
    },
    /// KVM could not emulate the instruction at RIP.
    EmulationFailure,
}

/// The next step of the vCPU after a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TrapOutcome {
    /// The trap is handled: the vCPU resumes with the present registers.
    Resume,
    /// The trap is not the engine's: the default action follows. A breakpoint becomes #BP for the guest, a port write
    /// reaches its device, a memory or MSR write takes place, an emulation failure ends the run.
    Reinject,
    /// Call [`TrapHandler::on_exclusive`](crate::TrapHandler::on_exclusive) for this trap, with every other vCPU paused.
    Exclusive,
    /// End the run.
    Stop,
}

/// A handler could not do its work; the machine stops.
#[derive(Debug, thiserror::Error)]
#[error("cannot handle {what} on vCPU {vcpu} at {rip}")]
pub struct TrapError {
    /// The work that failed.
    pub what: &'static str,
    /// Which vCPU.
    pub vcpu: usize,
    /// Its RIP.
    pub rip: Gva,
    /// The cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}
