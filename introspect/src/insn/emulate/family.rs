//! Families of instructions, one for each file.

use iced_x86::{Code, EncodingKind, Instruction, Mnemonic};

use super::segment;

/// The instructions emulated by one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::insn) enum Family {
    /// Continuing without any change: `nop`, `endbr64`, `pause`, prefetches.
    Nop,
    /// Memory fences.
    Fence,
    /// Addition, subtraction, comparison.
    Arith,
    /// Bitwise logic.
    Logic,
    /// Multiplication and division.
    Multiply,
    /// Shifts and rotations.
    Shift,
    /// Single bits and counting bits.
    Bits,
    /// Moving and converting values.
    Data,
    /// Strings.
    String,
    /// The stack.
    Stack,
    /// Near branches.
    Branch,
    /// The flags register.
    Status,
    /// Segment registers and their bases.
    Segment,
    /// Letting interrupts in, and waiting for them.
    Interrupts,
    /// Returns from interrupts and system calls.
    Transfer,
}

impl Family {
    /// The family of an instruction, by mnemonic; `None` if no file emulates the instruction.
    pub(in crate::insn) fn of(insn: &Instruction) -> Option<Self> {
        use Mnemonic as M;
        if insn.encoding() != EncodingKind::Legacy {
            return None;
        }
        Some(match insn.mnemonic() {
            M::Nop
            | M::Endbr64
            | M::Endbr32
            | M::Pause
            | M::Prefetch
            | M::Prefetchw
            | M::Prefetchnta
            | M::Prefetcht0
            | M::Prefetcht1
            | M::Prefetcht2 => Self::Nop,
            M::Lfence | M::Mfence | M::Sfence => Self::Fence,
            M::Add
            | M::Adc
            | M::Sub
            | M::Sbb
            | M::Cmp
            | M::Inc
            | M::Dec
            | M::Neg
            | M::Xadd
            | M::Cmpxchg => Self::Arith,
            M::And | M::Or | M::Xor | M::Test | M::Not => Self::Logic,
            M::Mul | M::Imul | M::Div | M::Idiv => Self::Multiply,
            M::Shl
            | M::Sal
            | M::Shr
            | M::Sar
            | M::Rol
            | M::Ror
            | M::Rcl
            | M::Rcr
            | M::Shld
            | M::Shrd => Self::Shift,
            M::Bt
            | M::Bts
            | M::Btr
            | M::Btc
            | M::Bsf
            | M::Bsr
            | M::Tzcnt
            | M::Lzcnt
            | M::Popcnt => Self::Bits,
            M::Mov if segment::is_move(insn) => Self::Segment,
            M::Mov
            | M::Movzx
            | M::Movsx
            | M::Movsxd
            | M::Movbe
            | M::Lea
            | M::Xchg
            | M::Bswap
            | M::Cbw
            | M::Cwde
            | M::Cdqe
            | M::Cwd
            | M::Cdq
            | M::Cqo
            | M::Seta
            | M::Setae
            | M::Setb
            | M::Setbe
            | M::Sete
            | M::Setg
            | M::Setge
            | M::Setl
            | M::Setle
            | M::Setne
            | M::Setno
            | M::Setnp
            | M::Setns
            | M::Seto
            | M::Setp
            | M::Sets
            | M::Cmova
            | M::Cmovae
            | M::Cmovb
            | M::Cmovbe
            | M::Cmove
            | M::Cmovg
            | M::Cmovge
            | M::Cmovl
            | M::Cmovle
            | M::Cmovne
            | M::Cmovno
            | M::Cmovnp
            | M::Cmovns
            | M::Cmovo
            | M::Cmovp
            | M::Cmovs => Self::Data,
            // `movsd` and `cmpsd` are also the names of vector instructions.
            M::Movsb
            | M::Movsw
            | M::Movsq
            | M::Stosb
            | M::Stosw
            | M::Stosd
            | M::Stosq
            | M::Lodsb
            | M::Lodsw
            | M::Lodsd
            | M::Lodsq
            | M::Scasb
            | M::Scasw
            | M::Scasd
            | M::Scasq
            | M::Cmpsb
            | M::Cmpsw
            | M::Cmpsq => Self::String,
            M::Movsd | M::Cmpsd if insn.is_string_instruction() => Self::String,
            M::Push | M::Pop | M::Leave => Self::Stack,
            M::Jmp | M::Call if is_near(insn.code()) => Self::Branch,
            M::Ret
            | M::Loop
            | M::Loope
            | M::Loopne
            | M::Jrcxz
            | M::Jecxz
            | M::Ja
            | M::Jae
            | M::Jb
            | M::Jbe
            | M::Je
            | M::Jg
            | M::Jge
            | M::Jl
            | M::Jle
            | M::Jne
            | M::Jno
            | M::Jnp
            | M::Jns
            | M::Jo
            | M::Jp
            | M::Js => Self::Branch,
            M::Clc
            | M::Stc
            | M::Cmc
            | M::Cld
            | M::Std
            | M::Lahf
            | M::Sahf
            | M::Cli
            | M::Clac
            | M::Stac
            | M::Pushf
            | M::Pushfq
            | M::Popf
            | M::Popfq => Self::Status,
            M::Swapgs | M::Rdfsbase | M::Rdgsbase | M::Wrfsbase | M::Wrgsbase => Self::Segment,
            M::Sti | M::Hlt => Self::Interrupts,
            M::Iretd | M::Iretq | M::Sysret | M::Sysretq => Self::Transfer,
            _ => return None,
        })
    }
}

fn is_near(code: Code) -> bool {
    !(code.is_jmp_far()
        || code.is_jmp_far_indirect()
        || code.is_call_far()
        || code.is_call_far_indirect())
}
