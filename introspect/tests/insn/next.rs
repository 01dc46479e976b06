//! The places where a processor can be after an instruction.

use address::Gva;
use hyprobe_introspect::PagingState;
use hyprobe_introspect::insn::{Gpr, Next, next_places, tables_after};
use reference::Machine;

use super::{CODE, DATA, STACK, assembled, kernel};

fn places(mut machine: Machine, text: &str, hex: &str) -> Vec<Next> {
    next_places(&mut machine, &assembled(text, hex))
}

fn at(address: u64) -> Next {
    Next::At(Gva(address))
}

#[test]
fn most_instructions_go_on_behind_themselves() {
    for (text, hex, len) in [
        ("wrmsr", "0f 30", 2),
        ("movaps xmm0, [rax]", "0f 28 00", 3),
        ("rep outsb dx, [rsi]", "f3 6e", 2),
        ("vmcall", "0f 01 c1", 3),
        ("hlt", "f4", 1),
    ] {
        assert_eq!(places(kernel(), text, hex), [at(CODE + len)], "{text}");
    }
    let none: [Next; 0] = [];
    assert_eq!(places(kernel(), "ud2", "0f 0b"), none);
    assert_eq!(places(kernel(), "sysretq", "48 0f 07"), none);
}

#[test]
fn branches_go_where_they_say() {
    let behind = at(CODE + 2);
    assert_eq!(
        places(kernel(), "jrcxz 0xffffffff81000012", "e3 10"),
        [behind, at(CODE + 0x12)]
    );
    assert_eq!(
        places(kernel(), "call 0xffffffff81000105", "e8 00 01 00 00"),
        [at(CODE + 0x105)]
    );
    // Either the transaction begins, or has been aborted.
    assert_eq!(
        places(kernel(), "xbegin 0xffffffff81000106", "c7 f8 00 01 00 00"),
        [at(CODE + 6), at(CODE + 0x106)]
    );
}

#[test]
fn targets_in_registers_and_memory_are_read() {
    let machine = kernel()
        .with(Gpr::Rax, DATA + 8)
        .holding(DATA + 0x18, 0x10_1122_3344);
    assert_eq!(places(machine.clone(), "jmp rax", "ff e0"), [at(DATA + 8)]);
    assert_eq!(
        places(machine.clone(), "jmpf fword ptr [rax+0x10]", "ff 68 10"),
        [at(0x1122_3344)]
    );
    assert_eq!(
        places(machine.clone(), "callf tbyte ptr [rax+0x10]", "48 ff 58 10"),
        [at(0x10_1122_3344)]
    );
    let mut machine = machine;
    machine.gs = DATA;
    assert_eq!(
        places(
            machine,
            "jmp qword ptr gs:[0x18]",
            "65 ff 24 25 18 00 00 00"
        ),
        [at(0x10_1122_3344)]
    );
    // An unreadable operand raises a fault.
    let unmapped = kernel().with(Gpr::Rax, 0x1000);
    assert!(places(unmapped, "jmp qword ptr [rax]", "ff 20").is_empty());
}

#[test]
fn far_returns_within_the_kernel_go_where_the_stack_says() {
    let machine = kernel()
        .holding(STACK, 0xffff_ffff_8200_0000)
        .holding(STACK + 8, 0x10);
    for (text, hex) in [("iretq", "48 cf"), ("retfq", "48 cb")] {
        assert_eq!(
            places(machine.clone(), text, hex),
            [at(0xffff_ffff_8200_0000)]
        );
        let to_a_program = machine.clone().holding(STACK + 8, 0x33);
        assert!(places(to_a_program, text, hex).is_empty());
    }
    let short = kernel().holding(STACK, 0x0010_8200_0000);
    assert_eq!(places(short, "retf", "cb"), [at(0x8200_0000)]);
}

#[test]
fn new_tables_are_those_that_the_instruction_loads() {
    let state = PagingState::four_level(0x1000);
    let machine = kernel().with(Gpr::Rdi, 0x5000);
    let after = |text, hex| tables_after(&machine, &assembled(text, hex), state);
    assert_eq!(
        after("mov cr3, rdi", "0f 22 df"),
        Some(state.with_cr3(0x5000))
    );
    let cr0 = after("mov cr0, rdi", "0f 22 c7").map(|state| state.cr0);
    assert_eq!(cr0, Some(0x5000));
    let cr4 = after("mov cr4, rdi", "0f 22 e7").map(|state| state.cr4);
    assert_eq!(cr4, Some(0x5000));
    assert_eq!(after("mov rdi, cr3", "0f 20 df"), None);
    assert_eq!(after("mov cr8, rdi", "44 0f 22 c7"), None);
}

#[test]
fn targets_through_gates_and_msrs_are_named() {
    assert_eq!(places(kernel(), "int 0x80", "cd 80"), [Next::Gate(0x80)]);
    assert_eq!(places(kernel(), "int1", "f1"), [Next::Gate(1)]);
    assert_eq!(
        places(kernel(), "syscall", "0f 05"),
        [Next::Msr(0xc000_0082)]
    );
    assert_eq!(places(kernel(), "sysenter", "0f 34"), [Next::Msr(0x176)]);
}
