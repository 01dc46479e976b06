//! Addresses, segments and sizes: tests without the host's processor.

use hyprobe_introspect::insn::{Gpr, Outcome, Reason};
use reference::Machine;

use super::{CODE, DATA, kernel};

#[test]
fn segments_add_their_base() {
    let mut machine = kernel().holding(DATA + 0x20, 0x5555);
    machine.gs = DATA;
    let after = machine.after("mov rax, gs:[0x20]", "65 48 8b 04 25 20 00 00 00");
    assert_eq!(after.gpr(Gpr::Rax), 0x5555);
    let mut machine = kernel().with(Gpr::Rbx, 0x28).holding(DATA + 0x28, 0x66);
    machine.fs = DATA;
    let after = machine.after("mov eax, fs:[rbx]", "64 8b 03");
    assert_eq!(after.gpr(Gpr::Rax), 0x66);
}

#[test]
fn lea_ignores_segments() {
    let mut machine = kernel().with(Gpr::Rbx, 0x1000);
    machine.gs = DATA;
    let after = machine.after("lea rax, gs:[rbx+0x8]", "65 48 8d 43 08");
    assert_eq!(after.gpr(Gpr::Rax), 0x1008);
}

#[test]
fn rip_relative_counts_from_the_next_instruction() {
    let after = kernel().after("lea rax, [0xffffffff81000017]", "48 8d 05 10 00 00 00");
    assert_eq!(after.gpr(Gpr::Rax), CODE + 0x17);
}

#[test]
fn an_address_of_32_bits_wraps() {
    let after = kernel()
        .with(Gpr::Rax, 0x1_ffff_fff0)
        .after("lea rcx, [eax+0x20]", "67 48 8d 48 20");
    assert_eq!(after.gpr(Gpr::Rcx), 0x10);
}

#[test]
fn the_nops_of_function_entries_only_go_on() {
    for (text, hex, length) in [
        ("nop dword ptr [rax+rax]", "0f 1f 44 00 00", 5),
        ("endbr64", "f3 0f 1e fa", 4),
        ("nop", "90", 1),
        ("nop", "66 90", 2),
        (
            "nop word ptr cs:[rax+rax]",
            "66 66 2e 0f 1f 84 00 00 00 00 00",
            11,
        ),
        ("pause", "f3 90", 2),
    ] {
        let after = kernel().after(text, hex);
        assert_eq!(
            after,
            Machine {
                rip: CODE + length,
                ..kernel()
            },
            "{text}"
        );
    }
}

#[test]
fn a_conditional_move_reads_its_source_in_any_case() {
    let machine = kernel().with(Gpr::Rbx, 0x10).with_flags(0);
    let outcome = machine.refused("cmove rax, [rbx]", "48 0f 44 03");
    assert!(matches!(outcome, Outcome::Fault(_)));
}

#[test]
fn a_conditional_move_of_32_bits_clears_the_upper_half_in_any_case() {
    let after = kernel()
        .with(Gpr::Rax, u64::MAX)
        .after("cmove eax, ebx", "0f 44 c3");
    assert_eq!(after.gpr(Gpr::Rax), 0xffff_ffff);
}

#[test]
fn division_errors_are_left_to_the_guest() {
    for (divisor, high) in [(0, 0), (2, 2)] {
        let machine = kernel().with(Gpr::Rcx, divisor).with(Gpr::Rdx, high);
        let outcome = machine.refused("div rcx", "48 f7 f1");
        assert_eq!(outcome, Outcome::Unsupported(Reason::DivideError));
    }
    let machine = kernel()
        .with(Gpr::Rax, 1 << 63)
        .with(Gpr::Rdx, u64::MAX)
        .with(Gpr::Rcx, u64::MAX);
    let outcome = machine.refused("idiv rcx", "48 f7 f9");
    assert_eq!(outcome, Outcome::Unsupported(Reason::DivideError));
}

#[test]
fn branches_to_non_canonical_addresses_are_left_to_the_guest() {
    let nowhere = 0x8000_0000_0000_0000;
    let outcome = kernel().with(Gpr::Rax, nowhere).refused("jmp rax", "ff e0");
    assert_eq!(outcome, Outcome::Unsupported(Reason::BranchNotCanonical));
    // The call must not have pushed.
    let outcome = kernel()
        .with(Gpr::Rax, nowhere)
        .refused("call rax", "ff d0");
    assert_eq!(outcome, Outcome::Unsupported(Reason::BranchNotCanonical));
}

#[test]
fn scanning_nothing_into_32_bits_is_refused_where_processors_differ() {
    let after = kernel().with(Gpr::Rax, 7).after("bsf eax, ecx", "0f bc c1");
    assert_eq!((after.gpr(Gpr::Rax), after.rflags & 0x40), (7, 0x40));
    let outcome = kernel()
        .with(Gpr::Rax, u64::MAX)
        .refused("bsf eax, ecx", "0f bc c1");
    assert_eq!(outcome, Outcome::Unsupported(Reason::UndefinedResult));
}

#[test]
fn instruction_of_a_missing_cpu_feature_is_refused() {
    let mut machine = kernel();
    machine.features.popcnt = false;
    let outcome = machine.refused("popcnt rax, rcx", "f3 48 0f b8 c1");
    assert_eq!(outcome, Outcome::Unsupported(Reason::MissingFeature));
}

#[test]
fn repeated_moves_and_stores_are_done_at_once() {
    let after = kernel()
        .with(Gpr::Rsi, DATA)
        .with(Gpr::Rdi, DATA + 0x40)
        .with(Gpr::Rcx, 3)
        .holding(DATA + 8, 0x1122)
        .after("rep movsq [rdi], [rsi]", "f3 48 a5");
    assert_eq!(after.quadword(DATA + 0x48), 0x1122);
    let ends = [Gpr::Rsi, Gpr::Rdi, Gpr::Rcx].map(|register| after.gpr(register));
    assert_eq!(ends, [DATA + 0x18, DATA + 0x58, 0]);

    let after = kernel()
        .with(Gpr::Rdi, DATA)
        .with(Gpr::Rax, 0xabcd)
        .with(Gpr::Rcx, 2)
        .after("rep stosw [rdi], ax", "f3 66 ab");
    assert_eq!(after.quadword(DATA), 0xabcd_abcd);

    let after = kernel()
        .with(Gpr::Rdi, 1)
        .after("rep stosb [rdi], al", "f3 aa");
    assert_eq!((after.gpr(Gpr::Rdi), after.rip), (1, CODE + 2));
}

#[test]
fn repeated_moves_that_must_go_element_by_element_are_refused() {
    let machine = kernel().with(Gpr::Rsi, DATA).with(Gpr::Rcx, 3);
    for refused in [
        machine.clone().with(Gpr::Rdi, DATA + 8),
        machine
            .clone()
            .with(Gpr::Rdi, DATA + 0x80)
            .with_flags(1 << 10),
        machine
            .clone()
            .with(Gpr::Rdi, DATA + 0x80)
            .with(Gpr::Rcx, u64::MAX / 8),
        machine
            .clone()
            .with(Gpr::Rdi, DATA + 0x80)
            .with(Gpr::Rcx, 0x4000),
        machine.clone().with(Gpr::Rdi, u64::MAX - 4),
    ] {
        let outcome = refused.refused("rep movsq [rdi], [rsi]", "f3 48 a5");
        assert_eq!(outcome, Outcome::Unsupported(Reason::Repeated));
    }
}
