//! The instructions that the hardware must run, with the reasons, and emulated instructions.

use hyprobe_introspect::insn::{Class, Reason, classify};

use super::assembled;

fn reason(text: &str, hex: &str) -> Reason {
    match classify(&assembled(text, hex)) {
        Class::MustStep(reason) => reason,
        Class::Emulatable => panic!("{text} is emulated"),
    }
}

#[test]
fn each_refusal_has_its_reason() {
    for (text, hex, expected) in [
        ("int3", "cc", Reason::Breakpoint),
        ("int 0x80", "cd 80", Reason::SoftwareInterrupt),
        ("int1", "f1", Reason::SoftwareInterrupt),
        ("syscall", "0f 05", Reason::SystemCall),
        ("iret", "66 cf", Reason::InterruptReturn),
        ("sysexit", "0f 35", Reason::SystemReturn),
        ("mov fs, eax", "8e e0", Reason::Segment),
        ("push fs", "0f a0", Reason::Segment),
        ("mov cr3, rax", "0f 22 d8", Reason::Privileged),
        ("mov rax, dr7", "0f 21 f8", Reason::Privileged),
        ("wrmsr", "0f 30", Reason::Privileged),
        ("invlpg [rax]", "0f 01 38", Reason::Privileged),
        ("rdtsc", "0f 31", Reason::Environment),
        ("cpuid", "0f a2", Reason::Environment),
        ("in al, dx", "ec", Reason::PortIo),
        ("repe cmpsb [rsi], [rdi]", "f3 a6", Reason::Repeated),
        ("repne scasb al, [rdi]", "f2 ae", Reason::Repeated),
        ("retf", "cb", Reason::FarBranch),
        ("ud2", "0f 0b", Reason::Undefined),
        ("vmmcall", "0f 01 d9", Reason::Virtualisation),
        ("vmcall", "0f 01 c1", Reason::Virtualisation),
        ("fld1", "d9 e8", Reason::Fpu),
        ("fnop", "d9 d0", Reason::Fpu),
        ("movq mm0, rax", "48 0f 6e c0", Reason::Fpu),
        ("movaps xmm0, xmm1", "0f 28 c1", Reason::Vector),
        ("movsd xmm0, xmm1", "f2 0f 10 c1", Reason::Vector),
        ("vzeroupper", "c5 f8 77", Reason::Vector),
        ("lock cmpxchg16b [rax]", "f0 48 0f c7 08", Reason::Locked),
        (
            "xbegin 0xffffffff81000006",
            "c7 f8 00 00 00 00",
            Reason::Transaction,
        ),
        ("rdsspq rax", "f3 48 0f 1e c8", Reason::ShadowStack),
        ("enter 0x8, 0x0", "c8 08 00 00", Reason::Unmodelled),
        ("xlat [rbx]", "d7", Reason::Unmodelled),
        ("jmp 0xffffffff81000004", "66 eb 01", Reason::VendorSpecific),
        ("bswap ax", "66 0f c8", Reason::UndefinedResult),
    ] {
        assert_eq!(reason(text, hex), expected, "{text}");
    }
}

#[test]
fn usual_kernel_instructions_are_emulatable() {
    for (text, hex) in [
        ("push rbp", "55"),
        ("mov rbp, rsp", "48 89 e5"),
        ("lea rdi, [rsp+0x8]", "66 48 8d 7c 24 08"),
        ("notrack jmp rax", "3e ff e0"),
        ("repne jmp 0xffffffff81000003", "f2 eb 00"),
        ("jmp qword ptr [rax*8-0x7e000000]", "ff 24 c5 00 00 00 82"),
        (
            "mov rax, [0x1122334455667788]",
            "48 a1 88 77 66 55 44 33 22 11",
        ),
        ("lock cmpxchg [rdi], ecx", "f0 0f b1 0f"),
        ("lfence", "0f ae e8"),
        ("prefetchw [rax]", "0f 0d 08"),
    ] {
        let decoded = assembled(text, hex);
        assert_eq!(classify(&decoded), Class::Emulatable, "{text}");
    }
}
