//! The memory that an instruction reads.

use address::Gva;
use hyprobe_introspect::insn::{Gpr, OperandRead, operand_read, read_operands};

use super::{DATA, STACK, assembled, kernel};

#[test]
fn read_operands_have_addresses_and_lengths() {
    for (text, hex, reads) in [
        ("movups xmm0, [rdi]", "0f 10 07", vec![(DATA, 16)]),
        (
            "movq xmm0, [rdi+0x8]",
            "f3 0f 7e 47 08",
            vec![(DATA + 8, 8)],
        ),
        ("movups [rdi], xmm0", "0f 11 07", vec![]),
        ("cmpxchg16b [rdi]", "48 0f c7 0f", vec![(DATA, 16)]),
        ("fxrstor [rdi]", "0f ae 0f", vec![(DATA, 512)]),
        ("mov eax, gs:[rdi]", "65 8b 07", vec![(DATA, 4)]),
        ("movsq [rdi], [rsi]", "48 a5", vec![(DATA + 0x40, 8)]),
        ("pop rax", "58", vec![(STACK, 8)]),
        ("mov [rdi], eax", "89 07", vec![]),
        ("nop", "90", vec![]),
        ("syscall", "0f 05", vec![]),
    ] {
        let mut machine = kernel().with(Gpr::Rdi, DATA).with(Gpr::Rsi, DATA + 0x40);
        let found = read_operands(&mut machine, &assembled(text, hex));
        let reads: Vec<_> = reads.into_iter().map(|(at, len)| (Gva(at), len)).collect();
        assert_eq!(found, Some(reads), "{text}");
    }
}

#[test]
fn read_without_a_known_length_or_address_is_not_known() {
    for (text, hex) in [
        ("rep movsb [rdi], [rsi]", "f3 a4"),
        ("xrstor [rdi]", "0f ae 2f"),
        ("bt [rdi], rax", "48 0f a3 07"),
        ("vpgatherdd xmm0, [rdi+xmm1*4], xmm2", "c4 e2 69 90 04 8f"),
    ] {
        let mut machine = kernel().with(Gpr::Rdi, DATA);
        assert_eq!(
            read_operands(&mut machine, &assembled(text, hex)),
            None,
            "{text}"
        );
    }
}

#[test]
fn operand_that_is_read_may_be_written_too() {
    use OperandRead::{Atomic, Descriptor, Only, ThenWrite};
    for (text, hex, read) in [
        ("mov rax, [rdi]", "48 8b 07", Only),
        ("cmp [rdi], rax", "48 39 07", Only),
        ("push qword ptr [rdi]", "ff 37", Only),
        ("movsq [rdi], [rsi]", "48 a5", Only),
        ("inc qword ptr [rdi]", "48 ff 07", ThenWrite),
        ("cmpxchg [rdi], rcx", "48 0f b1 0f", ThenWrite),
        ("lock inc qword ptr [rdi]", "f0 48 ff 07", Atomic),
        ("lock cmpxchg [rdi], rcx", "f0 48 0f b1 0f", Atomic),
        ("xchg [rdi], rax", "48 87 07", Atomic),
        ("lidt [rdi]", "0f 01 1f", Descriptor),
        ("lgdt [rdi]", "0f 01 17", Descriptor),
        ("fxrstor [rdi]", "0f ae 0f", Only),
    ] {
        assert_eq!(operand_read(&assembled(text, hex)), read, "{text}");
    }
}
