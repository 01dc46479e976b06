//! The instructions that a detour can hold.
//!
//! A detour can hold more instructions than [`relocation`] allows for a copy of a single
//! instruction at an exit. A detour is made for its address, so operands and branches relative to
//! RIP are computed anew. The kernel's exception table has no entry for an instruction in a region,
//! so a fault of the copy is a kernel bug, like a fault of the original.

use iced_x86::{Code, FlowControl, Mnemonic, Register};

use crate::insn::{Class, CpuidWords, Decoded, Reason, Relocation, classify, relocation};

/// How a detour executes an instruction, and where execution continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Motion {
    /// The copy runs through to the next instruction, or branches.
    Through,
    /// The copy never continues to the next instruction.
    Ends,
    /// A direct call.
    Call,
}

/// Why a detour cannot hold an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fixed {
    /// `loop` and `jrcxz`: their targets are at most 127 bytes away.
    ShortBranch,
    /// An indirect call.
    IndirectCall,
    /// `ud2` and the like, and software interrupts: the kernel looks their address up.
    Trap,
    /// `endbr64`: an indirect branch may land on the instruction.
    Landing,
    /// The instruction changes or reads the state of the machine, may wait, or holds interrupts
    /// back; or is not yet examined.
    System,
}

impl Fixed {
    /// The reason as one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ShortBranch => "short-branch",
            Self::IndirectCall => "indirect-call",
            Self::Trap => "trap",
            Self::Landing => "landing",
            Self::System => "system",
        }
    }

    /// The reason as a fragment of a sentence: "it …".
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::ShortBranch => "is a branch that reaches 127 bytes only",
            Self::IndirectCall => "is an indirect call",
            Self::Trap => "is made to trap",
            Self::Landing => "is where an indirect branch may land",
            Self::System => "works on the state of the machine",
        }
    }
}

/// Whether a detour can hold `decoded`.
pub(super) fn motion(decoded: &Decoded) -> Result<Motion, Fixed> {
    use Mnemonic as M;
    let insn = decoded.instruction();
    let known = classify(decoded);
    let is_plain = known == Class::Emulatable;
    match insn.flow_control() {
        FlowControl::Next => (),
        FlowControl::UnconditionalBranch | FlowControl::Return | FlowControl::IndirectBranch
            if is_plain && !is_system(insn.mnemonic()) =>
        {
            return Ok(Motion::Ends);
        }
        FlowControl::ConditionalBranch => {
            return match insn.mnemonic() {
                M::Loop | M::Loope | M::Loopne | M::Jrcxz | M::Jecxz => Err(Fixed::ShortBranch),
                _ if is_plain => Ok(Motion::Through),
                _ => Err(Fixed::System),
            };
        }
        FlowControl::Call if is_plain && insn.code() == Code::Call_rel32_64 => {
            return Ok(Motion::Call);
        }
        FlowControl::IndirectCall => return Err(Fixed::IndirectCall),
        FlowControl::Exception | FlowControl::Interrupt => return Err(Fixed::Trap),
        _ => return Err(Fixed::System),
    }
    if insn.mnemonic() == M::Endbr64 {
        return Err(Fixed::Landing);
    }
    let moves_along = match known {
        Class::Emulatable => !is_system(insn.mnemonic()) && !loads_segment(decoded),
        // Only for the emulator do the kind of memory access and the registers matter.
        Class::MustStep(Reason::Locked | Reason::Repeated | Reason::Vector) => true,
        // Whether the processor has the instruction does not matter: without it, the original fails
        // too.
        Class::MustStep(_) => matches!(
            relocation(decoded, &CpuidWords::ALL),
            Relocation::Relocatable(_)
        ),
    };
    // Relative to the lower half of RIP: from elsewhere nothing is the same.
    let reaches = insn.memory_base() != Register::EIP;
    if moves_along && reaches {
        Ok(Motion::Through)
    } else {
        Err(Fixed::System)
    }
}

/// Instructions known to the emulator, but not allowed in a detour.
const fn is_system(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Hlt
            | M::Sti
            | M::Swapgs
            | M::Wrfsbase
            | M::Wrgsbase
            | M::Iretd
            | M::Iretq
            | M::Sysret
            | M::Sysretq
    )
}

fn loads_segment(decoded: &Decoded) -> bool {
    let insn = decoded.instruction();
    insn.mnemonic() != Mnemonic::Push && insn.op0_register().is_segment_register()
}
