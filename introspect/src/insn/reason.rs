//! The reasons to step on hardware.

/// Why the hardware must run an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The bytes are no instruction, or only a part of an instruction.
    Undecodable,
    /// An atomic access impossible from outside: 8 or 16 bytes compared at once, a misaligned
    /// access, or an access that other processors disturbed at every attempt.
    Locked,
    /// A string instruction with a repeat prefix, which can be interrupted half-way: a comparison
    /// or a load, or a move or store that is long, downwards or into itself. Also a move or store
    /// that faults: by then the hardware has moved the elements before the fault.
    Repeated,
    /// SSE, AVX and every other VEX or EVEX encoding: not in the general registers.
    Vector,
    /// The floating-point unit and MMX.
    Fpu,
    /// `in`, `out`, `ins`, `outs`: they talk to a device, through an exit of their own.
    PortIo,
    /// Segment registers and their bases, other than loading the stack segment.
    Segment,
    /// `mov ss`, `pop ss`, `lss`: the processor holds traps back for one instruction.
    StackSegment,
    /// `sti`: the processor holds interrupts back for one instruction, and code relies on the delay
    /// (`sti; hlt`).
    EnablesInterrupts,
    /// `hlt`, `mwait` and their kind: they wait, for ever if interrupts are held back.
    Waits,
    /// `int3`: the guest's own breakpoint.
    Breakpoint,
    /// `int n`, `int1`: they push a frame including the flags.
    SoftwareInterrupt,
    /// `iret` in all forms: loads all flags, and the privilege level.
    InterruptReturn,
    /// `syscall`, `sysenter`: they save the flags in a register and change the level.
    SystemCall,
    /// `sysret`, `sysexit`: they load the flags and change the level.
    SystemReturn,
    /// A jump, call or return to another code segment.
    FarBranch,
    /// `ud0`, `ud1`, `ud2`: they exist to fault.
    Undefined,
    /// Changes or reads the state of the machine: control and debug registers, MSRs, descriptor
    /// tables, translation caches.
    Privileged,
    /// Calls a hypervisor (ours), or controls a hypervisor's guest (if the guest runs a
    /// hypervisor).
    Virtualisation,
    /// The result comes from the hardware: time, identity, random numbers, counters.
    Environment,
    /// Shadow stacks are not modelled.
    ShadowStack,
    /// Transactional memory.
    Transaction,
    /// None of the above, and not written yet.
    Unmodelled,
    /// Different behaviour on processors of different makers.
    VendorSpecific,
    /// With these operands the manuals leave the result undefined, and processors differ.
    UndefinedResult,
    /// [`Features`](super::Features) does not list the instruction for the guest's processor.
    MissingFeature,
    /// The guest's own trap flag is set, or would be: the guest must get the trap.
    GuestTrapFlag,
    /// The divisor is zero, or the quotient is too large: the guest must get the #DE.
    DivideError,
    /// The branch target is not canonical: the guest must get the #GP.
    BranchNotCanonical,
    /// The privilege level does not allow the instruction: the guest must get the #GP.
    PrivilegeLevel,
    /// A misaligned access by a program with alignment checks on: the guest must get the #AC.
    AlignmentCheck,
    /// The instruction was decoded for an address other than RIP.
    Elsewhere,
}

impl Reason {
    /// The reason as a fragment of a sentence: "it …".
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Undecodable => "is not a complete instruction",
            Self::Locked => "accesses memory atomically in a way only hardware can",
            Self::Repeated => "is a repeated string instruction",
            Self::Vector => "uses vector registers or encodings",
            Self::Fpu => "uses the floating-point unit",
            Self::PortIo => "accesses an I/O port",
            Self::Segment => "uses segment registers",
            Self::StackSegment => "loads the stack segment",
            Self::EnablesInterrupts => "enables interrupts after the next instruction",
            Self::Waits => "waits for an event",
            Self::Breakpoint => "is a breakpoint of the guest's own",
            Self::SoftwareInterrupt => "raises a software interrupt",
            Self::InterruptReturn => "returns from an interrupt",
            Self::SystemCall => "enters the kernel",
            Self::SystemReturn => "leaves the kernel",
            Self::FarBranch => "branches to another code segment",
            Self::Undefined => "is made to fault",
            Self::Privileged => "changes or reads the state of the machine",
            Self::Virtualisation => "talks to a hypervisor",
            Self::Environment => "gets its answer from the hardware",
            Self::ShadowStack => "uses the shadow stack",
            Self::Transaction => "is part of a transaction",
            Self::Unmodelled => "is not known to the emulator",
            Self::VendorSpecific => "differs between makers of processors",
            Self::UndefinedResult => "has an undefined result for these operands",
            Self::MissingFeature => "may not exist on the guest's processor",
            Self::GuestTrapFlag => "is single-stepped by the guest itself",
            Self::DivideError => "raises a divide error",
            Self::BranchNotCanonical => "branches to an address that does not exist",
            Self::PrivilegeLevel => "is not allowed at this privilege level",
            Self::AlignmentCheck => "accesses memory that is not aligned",
            Self::Elsewhere => "was decoded for another address",
        }
    }
}
