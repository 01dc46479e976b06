//! Random instructions.

use address::Gva;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use introspect::insn::{Class, Decoded, Reason, classify, decode};
use reference::Random;

use super::super::layout::{CODE_BYTES, Layout};
use super::super::snippet::State;
use super::meet;

/// No instruction of a snippet accesses more memory at once.
const MOST_MEMORY_BYTES: usize = 64;
/// Instructions of a sequence.
const MOST_IN_SEQUENCE: u64 = 4;

/// An instruction, and a state that suits the instruction.
pub(super) fn single(
    random: &mut Random,
    layout: &Layout,
    at: u64,
    state: &mut State,
) -> Option<Vec<u8>> {
    let decoded = instruction(random, layout, at, at)?;
    meet::meet(random, layout, at, &decoded, state).then(|| decoded.bytes().to_vec())
}

/// Several instructions: the last suits the state or has only registers to work on, the others only registers.
pub(super) fn sequence(
    random: &mut Random,
    layout: &Layout,
    at: u64,
    state: &mut State,
) -> Option<Vec<u8>> {
    let mut code = Vec::new();
    let mut undefined = 0;
    for _ in 0..=random.below(MOST_IN_SEQUENCE) + 1 {
        let here = at + code.len() as u64;
        let Some(decoded) = instruction(random, layout, at, here) else {
            continue;
        };
        let insn = decoded.instruction();
        let first = code.is_empty();
        let fits = code.len() + decoded.len() <= CODE_BYTES;
        let suits = match first {
            true => meet::meet(random, layout, at, &decoded, state),
            false => is_harmless(insn),
        };
        let straight = insn.flow_control() == FlowControl::Next;
        if !fits || !suits || !straight || insn.rflags_read() & undefined != 0 {
            continue;
        }
        undefined = (undefined & !insn.rflags_modified()) | insn.rflags_undefined();
        code.extend(decoded.bytes());
    }
    (!code.is_empty()).then_some(code)
}

/// Whether the instruction works on registers alone, with any content.
fn is_harmless(insn: &Instruction) -> bool {
    let memory = insn.op_kinds().any(|kind| {
        !matches!(
            kind,
            OpKind::Register
                | OpKind::Immediate8
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        )
    });
    let faults = matches!(insn.mnemonic(), Mnemonic::Div | Mnemonic::Idiv);
    (!memory || insn.mnemonic() == Mnemonic::Lea) && !faults && !insn.is_stack_instruction()
}

/// An instruction for `here` in the slot at `slot`. The branch target and the fixed addresses are allowed for snippets.
fn instruction(random: &mut Random, layout: &Layout, slot: u64, here: u64) -> Option<Decoded> {
    let mut bytes = bytes(random);
    let decoded = decode(&bytes, Gva(here)).ok()?;
    if !may_be_run(&decoded) {
        return None;
    }
    aim(&mut bytes, &decoded, random, layout, slot)?;
    decode(&bytes[..decoded.len()], Gva(here)).ok()
}

/// Prefixes, an opcode of a random map, and more bytes than any instruction has.
fn bytes(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (prefix, chances) in [
        (0x66, 4),
        (0x67, 10),
        (0x65, 10),
        (0x64, 20),
        (0x2e, 20),
        (0xf0, 12),
    ] {
        if random.one_in(chances) {
            bytes.push(prefix);
        }
    }
    if random.one_in(8) {
        bytes.push(if random.one_in(2) { 0xf2 } else { 0xf3 });
    }
    match random.below(16) {
        // VEX with two or three bytes.
        0 => bytes.extend([0xc5, random.byte()]),
        1 => {
            let map = 1 + random.byte() % 3;
            bytes.extend([0xc4, random.byte() & 0xe0 | map, random.byte()]);
        }
        kind => {
            if random.one_in(2) {
                bytes.push(0x40 | random.byte() & 0xf);
            }
            match kind {
                2..=8 => {}
                9..=13 => bytes.push(0x0f),
                14 => bytes.extend([0x0f, 0x38]),
                _ => bytes.extend([0x0f, 0x3a]),
            }
        }
    }
    for _ in 0..16 {
        bytes.push(random.byte());
    }
    bytes
}

/// Whether a snippet may have the instruction: the instruction changes only compared state, and reads nothing that differs from run to
/// run.
fn may_be_run(decoded: &Decoded) -> bool {
    use Mnemonic as M;
    let insn = decoded.instruction();
    let class = match classify(decoded) {
        Class::Emulatable => true,
        Class::MustStep(reason) => matches!(
            reason,
            Reason::Locked
                | Reason::Repeated
                | Reason::Vector
                | Reason::Fpu
                | Reason::Undefined
                | Reason::Unmodelled
                | Reason::VendorSpecific
                | Reason::UndefinedResult
        ),
    };
    let excluded = matches!(
        insn.mnemonic(),
        // They store addresses that a task switch of the host loses (see `compare`).
        M::Fnstenv | M::Fstenv | M::Fldenv | M::Fnsave | M::Fsave | M::Frstor
            // Memory at another address than an operand's.
            | M::Clzero | M::Movdir64b | M::Enqcmd | M::Enqcmds | M::Xstore | M::Montmul
            // More memory than a snippet has.
            | M::Fxsave | M::Fxsave64 | M::Fxrstor | M::Fxrstor64
            | M::Xsave | M::Xsave64 | M::Xsavec | M::Xsavec64 | M::Xsaveopt | M::Xsaveopt64
            | M::Xsaves | M::Xsaves64 | M::Xrstor | M::Xrstor64 | M::Xrstors | M::Xrstors64
            // Written out in `system`, with a nesting that fits the stack.
            | M::Enter
            // Written out in `system`, with meaningful frames and selectors.
            | M::Iret | M::Iretd | M::Iretq | M::Sysret | M::Sysretq | M::Sti | M::Swapgs
            // TCG fails an assertion when they have the bit for 256 bits, and QEMU is gone.
            | M::Vroundss | M::Vroundsd
            // They wait, or leave the guest for good.
            | M::Hlt
            | M::Getsec | M::Getsecq | M::Rsm
    );
    // A branch with 16-bit operands, which Intel ignores and AMD does not: the code at a 16-bit target is unknown.
    let short = insn.flow_control() != FlowControl::Next
        && matches!(classify(decoded), Class::MustStep(Reason::VendorSpecific));
    // TCG does not know the second encoding of `test`. Bochs takes the 16-bit `leave` for the 64-bit `leave`.
    let alias = matches!(
        insn.code(),
        Code::Test_rm8_imm8_F6r1
            | Code::Test_rm16_imm16_F7r1
            | Code::Test_rm32_imm32_F7r1
            | Code::Test_rm64_imm32_F7r1
            | Code::Leavew
    );
    class
        && !excluded
        && !alias
        && !short
        && !is_prefixed_oddly(decoded.bytes())
        // Addresses out of vector registers.
        && !insn.memory_index().is_vector_register()
        && insn.memory_size().size() <= MOST_MEMORY_BYTES
        && (0..insn.op_count()).all(|operand| !insn.op_register(operand).is_segment_register())
}

/// Whether QEMU's TCG handles the prefixes in another way than processors do. TCG obeys a REX prefix that is not the last prefix. If an
/// override of FS or GS comes before an override of a segment with base zero, TCG obeys the latter.
fn is_prefixed_oddly(bytes: &[u8]) -> bool {
    let is_legacy = |byte: &u8| {
        matches!(
            byte,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3
        )
    };
    let is_rex = |byte: &u8| (0x40..0x50).contains(byte);
    let prefixes = bytes
        .iter()
        .take_while(|byte| is_legacy(byte) || is_rex(byte));
    let (mut rex, mut based, mut flat) = (false, false, false);
    for byte in prefixes {
        if rex {
            return true;
        }
        rex |= is_rex(byte);
        based |= matches!(byte, 0x64 | 0x65);
        flat |= matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e);
    }
    based && flat
}

/// Points direct branches, and absolute and RIP-relative operands, at addresses allowed for snippets.
fn aim(
    bytes: &mut [u8],
    decoded: &Decoded,
    random: &mut Random,
    layout: &Layout,
    slot: u64,
) -> Option<()> {
    let insn = decoded.instruction();
    let mut decoder = Decoder::with_ip(64, bytes, decoded.at().0, DecoderOptions::NONE);
    let again = decoder.decode();
    let offsets = decoder.get_constant_offsets(&again);
    let mut patch = |offset: usize, size: usize, value: u64| {
        bytes.get_mut(offset..offset + size).map(|field| {
            field.copy_from_slice(&value.to_le_bytes()[..size]);
        })
    };
    if decoded.branch_target().is_some() {
        let distance = Layout::target(slot).wrapping_sub(decoded.next().0);
        patch(
            offsets.immediate_offset(),
            offsets.immediate_size(),
            distance,
        )?;
    }
    if insn.mnemonic() == Mnemonic::Ret && offsets.has_immediate() {
        // TCG takes the immediate for a signed number.
        patch(offsets.immediate_offset(), 2, random.below(0x8000))?;
    }
    let fixed = insn.memory_base() == Register::None && insn.memory_index() == Register::None;
    if offsets.has_displacement() && (fixed || insn.is_ip_rel_memory_operand()) {
        let origin = if insn.is_ip_rel_memory_operand() {
            decoded.next().0
        } else {
            0
        };
        let base = meet::segment_base(insn.memory_segment(), layout);
        let place = meet::place(random, layout, insn.memory_size().size(), true);
        let displacement = place.wrapping_sub(base).wrapping_sub(origin);
        patch(
            offsets.displacement_offset(),
            offsets.displacement_size(),
            displacement,
        )?;
    }
    Some(())
}
