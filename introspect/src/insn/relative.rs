//! RIP-relative operands in memory.

use address::Gva;
use iced_x86::{InstructionInfoFactory, Mnemonic, OpAccess, Register};

use super::decode::Decoded;

/// What an instruction does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryUse {
    /// The instruction reads, and does not write.
    Reads,
    /// The instruction writes, and may read.
    Writes,
    /// The instruction takes the address.
    TakesAddress,
    /// The instruction does not access the memory: `nop`, prefetch.
    None,
}

/// The address of the RIP-relative operand in memory.
#[must_use]
pub fn relative_address(decoded: &Decoded) -> Option<Gva> {
    let instruction = decoded.instruction();
    let has_base = matches!(instruction.memory_segment(), Register::FS | Register::GS);
    let is_relative = instruction.is_ip_rel_memory_operand() && !has_base;
    is_relative.then(|| Gva(instruction.ip_rel_memory_address()))
}

/// What the instruction does with the memory that [`relative_address`] is in.
#[must_use]
pub fn relative_use(decoded: &Decoded) -> MemoryUse {
    let instruction = decoded.instruction();
    if instruction.mnemonic() == Mnemonic::Lea {
        return MemoryUse::TakesAddress;
    }
    let mut factory = InstructionInfoFactory::new();
    let mut found = MemoryUse::None;
    for used in factory.info(instruction).used_memory() {
        found = match used.access() {
            OpAccess::Read | OpAccess::CondRead if found != MemoryUse::Writes => MemoryUse::Reads,
            OpAccess::Write | OpAccess::CondWrite => MemoryUse::Writes,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => MemoryUse::Writes,
            _ => found,
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::decode;

    const AT: Gva = Gva(0x1000);

    #[test]
    fn use_of_memory_at_a_distance_is_known() {
        for (code, used) in [
            // `cmp word [rip+0x10], 0`, `movzx ecx, word [rip+0x10]`, `test byte [rip+0x10], 1`
            (&[0x66, 0x83, 0x3d, 0x10, 0, 0, 0, 0][..], MemoryUse::Reads),
            (&[0x0f, 0xb7, 0x0d, 0x10, 0, 0, 0], MemoryUse::Reads),
            (&[0xf6, 0x05, 0x10, 0, 0, 0, 1], MemoryUse::Reads),
            // `mov word [rip+0x10], 1`, `add word [rip+0x10], 1`, `xchg eax, [rip+0x10]`
            (&[0x66, 0xc7, 0x05, 0x10, 0, 0, 0, 1, 0], MemoryUse::Writes),
            (&[0x66, 0x83, 0x05, 0x10, 0, 0, 0, 1], MemoryUse::Writes),
            (&[0x87, 0x05, 0x10, 0, 0, 0], MemoryUse::Writes),
            // `lea rax, [rip+0x10]`, `nop [rip+0x10]`
            (&[0x48, 0x8d, 0x05, 0x10, 0, 0, 0], MemoryUse::TakesAddress),
            (&[0x0f, 0x1f, 0x05, 0x10, 0, 0, 0], MemoryUse::None),
        ] {
            let decoded = decode(code, AT).expect("an instruction");
            let address = AT.0 + code.len() as u64 + 0x10;
            assert_eq!(relative_address(&decoded), Some(Gva(address)), "{code:x?}");
            assert_eq!(relative_use(&decoded), used, "{code:x?}");
        }
    }

    #[test]
    fn memory_of_a_segment_or_by_a_register_is_not_at_a_distance() {
        // `cmp word fs:[rip+0x10], 0`, `cmp word [rax], 0`, `nop`
        for code in [
            &[0x64, 0x66, 0x83, 0x3d, 0x10, 0, 0, 0, 0][..],
            &[0x66, 0x83, 0x38, 0],
            &[0x90],
        ] {
            let decoded = decode(code, AT).expect("an instruction");
            assert_eq!(relative_address(&decoded), None, "{code:x?}");
        }
    }
}
