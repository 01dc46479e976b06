//! The emulator's interface to a processor.

use std::fmt;

use address::Gva;
use thiserror::Error;

use super::system::{Msr, System, SystemChanges};

/// A general-purpose register with all 64 bits.
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
    /// All general-purpose registers, in the order of their encoding.
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

    /// The number in an instruction's encoding: rax is 0, rsp is 4, r15 is 15.
    #[must_use]
    pub const fn number(self) -> usize {
        self as usize
    }
}

/// A segment whose base can differ from zero in 64-bit mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// FS: thread-local storage of programs.
    Fs,
    /// GS: per-processor data of the kernel.
    Gs,
}

/// The kind of a memory access.
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
/// For most of the faults, the guest takes a page fault when running the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The page tables do not map the address.
    #[error("cannot {access} {at}: nothing is mapped there")]
    NotMapped {
        /// The first failing address.
        at: Gva,
        /// The kind of access.
        access: Access,
    },
    /// The page tables map the address, but forbid the access at the current privilege level.
    #[error("cannot {access} {at}: the page tables forbid it")]
    Forbidden {
        /// The first failing address.
        at: Gva,
        /// The kind of access.
        access: Access,
    },
    /// The address is mapped, but not to memory: an access may have side effects.
    #[error("cannot {access} {at}: no memory is behind it")]
    NotMemory {
        /// The first failing address.
        at: Gva,
        /// The kind of access.
        access: Access,
    },
    /// The address does not exist: the upper bits are not copies of the highest bit in use.
    #[error("cannot {access} {at}: the address is not canonical")]
    NotCanonical {
        /// The first failing address.
        at: Gva,
        /// The kind of access.
        access: Access,
    },
    /// No atomic access to the address is possible.
    #[error("cannot access {at} atomically")]
    NotAtomic {
        /// The address.
        at: Gva,
    },
    /// Registers of the vCPU could not be fetched.
    #[error("the registers of the vCPU could not be read")]
    Registers,
}

/// The maker of the guest's processor, for instructions with differences between makers.
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

/// The instructions of the guest's processor.
///
/// Old processors run some newer encodings as other instructions (`tzcnt` as `bsf`), so the
/// emulator checks the features. The emulator refuses an instruction whose feature is not set here.
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
    /// The processor's maker.
    pub vendor: Vendor,
}

impl Features {
    /// All features known to the emulator, on an Intel processor.
    pub const ALL: Self = Self {
        popcnt: true,
        lzcnt: true,
        bmi1: true,
        movbe: true,
        smap: true,
        vendor: Vendor::Intel,
    };
}

/// The longest access to memory: the access of a repeated string instruction.
pub const MOST_ACCESSED_BYTES: usize = 64 << 10;

/// A stopped processor in 64-bit mode, and the memory as seen by the processor.
///
/// No method may run the processor, and no other code may run the processor while the `Cpu` is
/// borrowed.
pub trait Cpu {
    /// A general-purpose register.
    fn gpr(&self, register: Gpr) -> u64;

    /// Sets a general-purpose register.
    fn set_gpr(&mut self, register: Gpr, value: u64);

    /// The address of the instruction to run.
    fn rip(&self) -> u64;

    /// Sets the address of the next instruction.
    fn set_rip(&mut self, value: u64);

    /// The flags as the guest sees them: without a trap flag set by the VMM.
    fn rflags(&self) -> u64;

    /// Sets the flags.
    fn set_rflags(&mut self, value: u64);

    /// The base of a segment.
    ///
    /// # Errors
    ///
    /// [`Fault::Registers`] if the base cannot be fetched.
    fn segment_base(&mut self, segment: Segment) -> Result<u64, Fault>;

    /// The current privilege level, 0..=3.
    ///
    /// # Errors
    ///
    /// [`Fault::Registers`] if the level cannot be fetched.
    fn privilege_level(&mut self) -> Result<u8, Fault>;

    /// Reads data at a virtual address like the guest's code: with the same page tables and
    /// privilege level, with protection keys and SMAP applied (or the access refused).
    ///
    /// A naturally aligned access of 2, 4 or 8 bytes happens in one piece, since other processors
    /// can tell. The read does not touch memory-mapped devices. Repeated string instructions access
    /// up to [`MOST_ACCESSED_BYTES`] at once, in any number of pages, each at any physical address.
    ///
    /// `access` is [`Access::Write`] if the instruction will write the same bytes: processors check
    /// the write permission before the read, and raise the fault of a write.
    ///
    /// # Errors
    ///
    /// If any byte cannot be read, or `access` is not allowed; then nothing has happened.
    fn read(&mut self, at: Gva, buf: &mut [u8], access: Access) -> Result<(), Fault>;

    /// Writes data at a virtual address; the same contract as [`Cpu::read`]. Accessed and
    /// dirty bits and write-protected pages are the implementation's concern.
    ///
    /// # Errors
    ///
    /// If any byte cannot be written; then no byte has been written, across pages too.
    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), Fault>;

    /// Replaces `old` by `new` in memory in one atomic step (sequentially consistent), as needed by
    /// locked instructions; `false` if the memory does not hold `old`. The address is a multiple of
    /// the length, which is 1, 2, 4 or 8; otherwise as [`Cpu::write`].
    ///
    /// The default is an error, so that the hardware runs locked instructions.
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
    /// The default is an error, so that the emulator refuses the instructions that need the
    /// registers and tables.
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
    /// [`Fault::Registers`] if the register cannot be fetched, as by default.
    fn msr(&mut self, register: Msr) -> Result<u64, Fault> {
        let _ = register;
        Err(Fault::Registers)
    }

    /// Makes the changes of a system instruction, which general registers, RIP and the flags
    /// follow without fail.
    ///
    /// # Errors
    ///
    /// [`Fault::Registers`] if the changes cannot be made, as by default; then nothing has
    /// happened.
    fn change_system(&mut self, changes: &SystemChanges) -> Result<(), Fault> {
        let _ = changes;
        Err(Fault::Registers)
    }

    /// Whether linear addresses have 57 bits, as with page tables of five levels. By default they have 48 bits. The emulator asks
    /// only about an address that is not canonical with 48 bits.
    ///
    /// # Errors
    ///
    /// [`Fault::Registers`] when the registers cannot be fetched.
    fn has_57_bits(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// The features of the guest's processor. By default only features of the first 64-bit
    /// processors.
    fn features(&self) -> Features {
        Features::default()
    }
}
