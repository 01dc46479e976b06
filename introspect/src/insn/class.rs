//! Classes of instructions: emulated, or stepped on hardware.

use iced_x86::{CpuidFeature, EncodingKind, Instruction, Mnemonic, OpKind, Register};

use super::decode::Decoded;
use super::emulate::Family;
use super::reason::Reason;

/// The way to step over an instruction displaced by a plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// [`emulate`](super::emulate()) emulates the instruction, unless operand values prevent the
    /// emulation, or the [`Cpu`](super::Cpu) lacks the feature.
    Emulatable,
    /// The hardware must run the instruction.
    MustStep(Reason),
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
