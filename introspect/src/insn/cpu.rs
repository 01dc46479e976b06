//! What the emulator needs of a processor.

use std::fmt;

use thiserror::Error;

use super::system::{Msr, System, SystemChanges};
use crate::Gva;

/// A general-purpose register, always all 64 bits of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum Gpr {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

impl Gpr {
    /// All of them, in the order of their encoding.
    pub const ALL: [Self; 16] = [
        Self::Rax,
        Self::Rcx,
        Self::Rdx,
        Self::Rbx,
        Self::Rsp,
        Self::Rbp,
        Self::Rsi,
        Self::Rdi,
        Self::R8,
        Self::R9,
        Self::R10,
        Self::R11,
        Self::R12,
        Self::R13,
        Self::R14,
        Self::R15,
    ];

    /// Its number in an instruction's encoding: rax is 0, rsp is 4, r15 is 15.
    #[must_use]
    pub const fn number(self) -> usize {
        self as usize
    }
}

/// A segment whose base is not zero in 64-bit mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// FS: thread-local storage of programs.
    Fs,
    /// GS: per-processor data of the kernel.
    Gs,
}

/// What a memory access was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A data read.
    Read,
    /// A data write.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// Why an access could not be made from outside.
///
/// Most of these the guest takes itself, as a page fault, once it runs the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The page tables do not map the address.
    #[error("cannot {access} {at}: nothing is mapped there")]
    NotMapped {
        /// The first address that failed.
        at: Gva,
        /// What for.
        access: Access,
    },
    /// The page tables map the address, but not for this access at this privilege level.
    #[error("cannot {access} {at}: the page tables forbid it")]
    Forbidden {
        /// The first address that failed.
        at: Gva,
        /// What for.
        access: Access,
    },
    /// The address is mapped to something that is not memory, where accesses have effects.
    #[error("cannot {access} {at}: no memory is behind it")]
    NotMemory {
        /// The first address that failed.
        at: Gva,
        /// What for.
        access: Access,
    },
    /// The address does not exist: its upper bits are not copies of the highest one in use.
    #[error("cannot {access} {at}: the address is not canonical")]
    NotCanonical {
        /// The first address that failed.
        at: Gva,
        /// What for.
        access: Access,
    },
    /// No atomic access can be made there.
    #[error("cannot access {at} atomically")]
    NotAtomic {
        /// The address.
        at: Gva,
    },
    /// Registers of the vCPU could not be fetched.
    #[error("the registers of the vCPU could not be read")]
    Registers,
}

/// Whose instruction set the guest's processor follows where makers differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vendor {
    /// None of the others, or not known.
    #[default]
    Other,
    /// Intel (CPUID.0: GenuineIntel).
    Intel,
    /// AMD (CPUID.0: AuthenticAMD).
    Amd,
}

/// Which instructions the guest's processor has.
///
/// Old processors run some newer encodings as other instructions (`tzcnt` as `bsf`), so the
/// emulator asks. What is not claimed here is not emulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// `popcnt` (CPUID.1:ECX bit 23).
    pub popcnt: bool,
    /// `lzcnt` (CPUID.80000001h:ECX bit 5).
    pub lzcnt: bool,
    /// `tzcnt` (CPUID.7:EBX bit 3, BMI1).
    pub bmi1: bool,
    /// `movbe` (CPUID.1:ECX bit 22).
    pub movbe: bool,
    /// `clac` and `stac` (CPUID.7:EBX bit 20).
    pub smap: bool,
    /// Whose it is.
    pub vendor: Vendor,
}

impl Features {
    /// Everything the emulator knows, on an Intel.
    pub const ALL: Self = Self {
        popcnt: true,
        lzcnt: true,
        bmi1: true,
        movbe: true,
        smap: true,
        vendor: Vendor::Intel,
    };
}

/// The longest access to memory: that of a repeated string instruction.
pub const MOST_ACCESSED_BYTES: usize = 64 << 10;

/// A stopped processor in 64-bit mode, and the memory it sees.
///
/// Nothing here may run the processor, and nobody else may while it is borrowed.
pub trait Cpu {
    /// A general-purpose register.
    fn gpr(&self, register: Gpr) -> u64;

    /// Sets a general-purpose register.
    fn set_gpr(&mut self, register: Gpr, value: u64);

    /// The address of the instruction to run.
    fn rip(&self) -> u64;

    /// Sets the address of the next instruction.
    fn set_rip(&mut self, value: u64);

    /// The flags, as the guest has them: without a trap flag that the VMM set.
    fn rflags(&self) -> u64;

    /// Sets the flags.
    fn set_rflags(&mut self, value: u64);

    /// The base of a segment.
    ///
    /// # Errors
    ///
    /// [`Fault::Registers`] when it cannot be fetched.
    fn segment_base(&mut self, segment: Segment) -> Result<u64, Fault>;

    /// The current privilege level, 0..=3.
    ///
    /// # Errors
    ///
    /// [`Fault::Registers`] when it cannot be fetched.
    fn privilege_level(&mut self) -> Result<u8, Fault>;

    /// Reads data at a virtual address as the guest's code would: same page tables, same
    /// privilege level, protection keys and SMAP heeded (or the access refused).
    ///
    /// An access of 2, 4 or 8 bytes that is naturally aligned is made in one piece, since
    /// other processors can tell. Memory-mapped devices are not touched. Repeated string
    /// instructions access up to [`MOST_ACCESSED_BYTES`] at once, in as many pages as it takes, each of
    /// which may be anywhere.
    ///
    /// `access` is [`Access::Write`] where the instruction will write the same bytes: processors
    /// check that it may before they read, and raise the fault of a write.
    ///
    /// # Errors
    ///
    /// When any of it cannot be read, or not be accessed so; then nothing has happened.
    fn read(&mut self, at: Gva, buf: &mut [u8], access: Access) -> Result<(), Fault>;

    /// Writes data at a virtual address; the same contract as [`Cpu::read`]. Accessed and
    /// dirty bits and write-protected pages are the implementation's concern.
    ///
    /// # Errors
    ///
    /// When any of it cannot be written; then none of it has been, across pages too.
    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), Fault>;

    /// Replaces `old` by `new` in memory in one atomic step (sequentially consistent), as
    /// locked instructions need; `false` when the memory holds something else. The address is
    /// a multiple of the length, which is 1, 2, 4 or 8; otherwise as [`Cpu::write`].
    ///
    /// By default refused, so that locked instructions are left to the hardware.
    ///
    /// # Errors
    ///
    /// When the memory cannot be written, or not atomically; then nothing has happened.
    fn compare_exchange(&mut self, at: Gva, old: &[u8], new: &[u8]) -> Result<bool, Fault> {
        let _ = (old, new);
        Err(Fault::NotAtomic { at })
    }

    /// Segment registers and descriptor tables.
    ///
    /// By default refused, and with it the instructions that need them.
    ///
    /// # Errors
    ///
    /// [`Fault::Registers`] when they cannot be fetched.
    fn system(&mut self) -> Result<System, Fault> {
        Err(Fault::Registers)
    }

    /// A model-specific register.
    ///
    /// # Errors
    ///
    /// [`Fault::Registers`] when it cannot be fetched, as by default.
    fn msr(&mut self, register: Msr) -> Result<u64, Fault> {
        let _ = register;
        Err(Fault::Registers)
    }

    /// Makes the changes of a system instruction, which general registers, RIP and the flags
    /// follow without fail.
    ///
    /// # Errors
    ///
    /// [`Fault::Registers`] when this cannot be done, as by default; then nothing has happened.
    fn change_system(&mut self, changes: &SystemChanges) -> Result<(), Fault> {
        let _ = changes;
        Err(Fault::Registers)
    }

    /// What the guest's processor can do. By default nothing beyond the first 64-bit ones.
    fn features(&self) -> Features {
        Features::default()
    }
}
