//! Classes of instructions: emulated, or the reason to step on hardware.

use iced_x86::{CpuidFeature, EncodingKind, Instruction, Mnemonic, OpKind, Register};

use super::decode::Decoded;
use super::emulate::Family;

/// The way to step over an instruction displaced by a plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// [`emulate`](super::emulate()) emulates the instruction, unless operand values prevent the
    /// emulation, or the [`Cpu`](super::Cpu) lacks the feature.
    Emulatable,
    /// The hardware must run the instruction.
    MustStep(Reason),
}

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

/// Whether the emulator knows an instruction, judged by the instruction alone.
#[must_use]
pub fn classify(decoded: &Decoded) -> Class {
    match family(decoded) {
        Ok(_) => Class::Emulatable,
        Err(reason) => Class::MustStep(reason),
    }
}

/// The emulator's family for the instruction, or the reason for none.
pub(super) fn family(decoded: &Decoded) -> Result<Family, Reason> {
    let insn = decoded.instruction();
    let Some(family) = Family::of(insn) else {
        return Err(reason(insn));
    };
    if family == Family::String && is_repeated_otherwise(insn) {
        return Err(Reason::Repeated);
    }
    for operand in 0..insn.op_count() {
        if family != Family::Segment && insn.op_kind(operand) == OpKind::Register {
            let register = insn.op_register(operand);
            if !register.is_gpr() {
                return Err(register_reason(register, operand == 0, insn.mnemonic()));
            }
        }
    }
    if is_vendor_specific(decoded, family) {
        return Err(Reason::VendorSpecific);
    }
    if insn.mnemonic() == Mnemonic::Bswap && insn.op0_register().size() == 2 {
        return Err(Reason::UndefinedResult);
    }
    Ok(family)
}

/// Whether the instruction is repeated, and neither `rep movs` nor `rep stos`.
fn is_repeated_otherwise(insn: &Instruction) -> bool {
    use Mnemonic as M;
    let plain = matches!(
        insn.mnemonic(),
        M::Movsb | M::Movsw | M::Movsd | M::Movsq | M::Stosb | M::Stosw | M::Stosd | M::Stosq
    );
    insn.has_repne_prefix() || (insn.has_rep_prefix() && !plain)
}

fn is_vendor_specific(decoded: &Decoded, family: Family) -> bool {
    let insn = decoded.instruction();
    let repeated = insn.has_rep_prefix() || insn.has_repne_prefix();
    let prefixes = decoded.prefixes();
    match insn.mnemonic() {
        // AMD takes the prefix for the condition and ignores the opcode's condition.
        Mnemonic::Loope | Mnemonic::Loopne if repeated => true,
        // With REX.B, AMD decodes `xchg r8, rax`, prefix or not.
        Mnemonic::Pause => prefixes.has_rex_b(),
        // Intel ignores 0x66; AMD decodes a 16-bit branch. Even the length differs.
        _ => family == Family::Branch && prefixes.has_effective_data16(),
    }
}

/// The reason not to emulate an instruction with this operand, if the mnemonic is emulated.
fn register_reason(register: Register, destination: bool, mnemonic: Mnemonic) -> Reason {
    match register {
        Register::SS if destination && mnemonic != Mnemonic::Push => Reason::StackSegment,
        _ if register.is_segment_register() => Reason::Segment,
        _ if register.is_cr() || register.is_dr() || register.is_tr() => Reason::Privileged,
        _ => Reason::Vector,
    }
}

/// The reason not to emulate an instruction without a family.
fn reason(insn: &Instruction) -> Reason {
    use Mnemonic as M;
    match insn.mnemonic() {
        M::Int3 => Reason::Breakpoint,
        M::Int | M::Int1 | M::Into => Reason::SoftwareInterrupt,
        M::Iret | M::Iretd | M::Iretq | M::Uiret | M::Erets | M::Eretu => Reason::InterruptReturn,
        M::Syscall | M::Sysenter => Reason::SystemCall,
        M::Sysret | M::Sysretq | M::Sysexit | M::Sysexitq => Reason::SystemReturn,
        M::Retf => Reason::FarBranch,
        M::Jmp | M::Call => Reason::FarBranch,
        M::Sti => Reason::EnablesInterrupts,
        M::Hlt
        | M::Monitor
        | M::Mwait
        | M::Monitorx
        | M::Mwaitx
        | M::Umonitor
        | M::Umwait
        | M::Tpause => Reason::Waits,
        M::Lss => Reason::StackSegment,
        M::Lfs
        | M::Lgs
        | M::Rdfsbase
        | M::Rdgsbase
        | M::Wrfsbase
        | M::Wrgsbase
        | M::Swapgs
        | M::Lsl
        | M::Lar
        | M::Verr
        | M::Verw => Reason::Segment,
        M::Ud0 | M::Ud1 | M::Ud2 => Reason::Undefined,
        M::In | M::Out | M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd => {
            Reason::PortIo
        }
        M::Vmcall | M::Vmmcall | M::Vmfunc | M::Vmgexit => Reason::Virtualisation,
        M::Rdtsc
        | M::Rdtscp
        | M::Rdpmc
        | M::Cpuid
        | M::Rdrand
        | M::Rdseed
        | M::Rdpid
        | M::Xgetbv
        | M::Rdpru
        | M::Rdpkru
        | M::Wrpkru => Reason::Environment,
        M::Xbegin | M::Xend | M::Xabort | M::Xtest => Reason::Transaction,
        _ => reason_by_feature(insn),
    }
}

fn reason_by_feature(insn: &Instruction) -> Reason {
    if insn.has_lock_prefix() {
        return Reason::Locked;
    }
    let has = |features: &[CpuidFeature]| {
        insn.cpuid_features()
            .iter()
            .any(|feature| features.contains(feature))
    };
    if has(&[CpuidFeature::VMX, CpuidFeature::SVM, CpuidFeature::SKINIT]) {
        Reason::Virtualisation
    } else if has(&[CpuidFeature::CET_SS, CpuidFeature::CET_IBT]) {
        Reason::ShadowStack
    } else if insn.is_privileged() {
        Reason::Privileged
    } else if insn.encoding() != EncodingKind::Legacy {
        Reason::Vector
    } else if has(&[
        CpuidFeature::FPU,
        CpuidFeature::FPU287,
        CpuidFeature::FPU387,
        CpuidFeature::MMX,
        CpuidFeature::D3NOW,
    ]) {
        Reason::Fpu
    } else if (0..insn.op_count()).any(|operand| insn.op_register(operand).is_vector_register()) {
        Reason::Vector
    } else {
        Reason::Unmodelled
    }
}
