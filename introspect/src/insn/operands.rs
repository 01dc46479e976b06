//! The memory that an instruction reads, by its operands.

use address::Gva;
use iced_x86::{InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

use super::cpu::Cpu;
use super::decode::Decoded;
use super::next::value;

/// The memory that `cpu` reads as operands of `decoded`: addresses and lengths in bytes. `None` if an address or a length is not known from
/// the registers: repeated string instructions, gathers, `bt` with a number in a register, `xrstor`.
#[must_use]
pub fn read_operands<C: Cpu + ?Sized>(cpu: &mut C, decoded: &Decoded) -> Option<Vec<(Gva, usize)>> {
    let insn = decoded.instruction();
    let is_repeated = is_repeated(decoded);
    // The number of a bit in a register is an offset from the operand.
    let is_bit = insn.op0_kind() == OpKind::Memory
        && insn.op1_kind() == OpKind::Register
        && matches!(
            insn.mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        );
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(insn).used_memory().iter();
    let reads = used.filter(|used| {
        use OpAccess::{CondRead, Read, ReadCondWrite, ReadWrite};
        matches!(used.access(), Read | CondRead | ReadWrite | ReadCondWrite)
    });
    let ranges = reads.map(|used| {
        let bytes = Some(used.memory_size().size())
            .filter(|bytes| *bytes > 0 && !is_repeated && !is_bit)?;
        let at = used.virtual_address(0, |register, _, _| value(cpu, register))?;
        Some((Gva(at), bytes))
    });
    ranges.collect()
}

/// Whether the instruction is a string instruction with a count, which may be executed in part.
#[must_use]
pub fn is_repeated(decoded: &Decoded) -> bool {
    let insn = decoded.instruction();
    insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix())
}

/// Whether the instruction writes to memory, or may write.
#[must_use]
pub fn writes_memory(decoded: &Decoded) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let mut used = factory.info(decoded.instruction()).used_memory().iter();
    used.any(|used| {
        use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
        matches!(used.access(), Write | CondWrite | ReadWrite | ReadCondWrite)
    })
}

/// What an instruction does with an operand in memory that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandRead {
    /// The instruction does not write to an operand that it reads.
    Only,
    /// The instruction reads and writes an operand: `inc`.
    ThenWrite,
    /// The instruction reads and writes an operand in one atomic step: `lock inc`, `xchg`.
    Atomic,
    /// The operand is the descriptor of a table: `lidt`.
    Descriptor,
}

/// What the instruction does with the operands in memory that it reads.
#[must_use]
pub fn operand_read(decoded: &Decoded) -> OperandRead {
    let insn = decoded.instruction();
    if matches!(insn.mnemonic(), Mnemonic::Lgdt | Mnemonic::Lidt) {
        return OperandRead::Descriptor;
    }
    let mut factory = InstructionInfoFactory::new();
    let mut used = factory.info(insn).used_memory().iter();
    let is_written =
        used.any(|used| matches!(used.access(), OpAccess::ReadWrite | OpAccess::ReadCondWrite));
    match is_written {
        false => OperandRead::Only,
        true if insn.has_lock_prefix() || insn.mnemonic() == Mnemonic::Xchg => OperandRead::Atomic,
        true => OperandRead::ThenWrite,
    }
}
