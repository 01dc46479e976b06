//! The order in which the stack pointer moves, operands are read, and memory is written.

use hyprobe_introspect::insn::Gpr;

use super::{CODE, DATA, STACK, kernel};

const FUNCTION: u64 = 0xffff_ffff_8123_4560;

#[test]
fn push_rsp_pushes_the_old_value() {
    let after = kernel().after("push rsp", "54");
    assert_eq!(after.quadword(STACK - 8), STACK);
    assert_eq!(after.gpr(Gpr::Rsp), STACK - 8);
}

#[test]
fn push_of_memory_addresses_with_the_old_stack_pointer() {
    let after = kernel()
        .holding(STACK + 8, 0x1234)
        .after("push qword ptr [rsp+0x8]", "ff 74 24 08");
    assert_eq!(after.quadword(STACK - 8), 0x1234);
}

#[test]
fn pop_rsp_keeps_the_popped_value() {
    let after = kernel().holding(STACK, 0x1234).after("pop rsp", "5c");
    assert_eq!(after.gpr(Gpr::Rsp), 0x1234);
}

#[test]
fn pop_to_memory_addresses_with_the_new_stack_pointer() {
    let after = kernel()
        .holding(STACK, 0x1234)
        .after("pop qword ptr [rsp+0x8]", "8f 44 24 08");
    assert_eq!(after.quadword(STACK + 16), 0x1234);
    assert_eq!(after.gpr(Gpr::Rsp), STACK + 8);
}

#[test]
fn sixteen_bit_pushes_and_pops_move_by_two() {
    let after = kernel()
        .with(Gpr::Rax, 0xaaaa_bbbb)
        .after("push ax", "66 50");
    assert_eq!(after.gpr(Gpr::Rsp), STACK - 2);
    assert_eq!(after.quadword(STACK - 2), 0xbbbb);
    let after = kernel().with(Gpr::Rcx, u64::MAX).after("pop cx", "66 59");
    assert_eq!(after.gpr(Gpr::Rsp), STACK + 2);
    assert_eq!(after.gpr(Gpr::Rcx), 0xffff_ffff_ffff_0000);
}

#[test]
fn immediates_are_pushed_sign_extended() {
    let after = kernel().after("push 0xffffffffffffffff", "6a ff");
    assert_eq!(after.quadword(STACK - 8), u64::MAX);
}

#[test]
fn call_pushes_the_address_behind_itself() {
    let after = kernel().after("call 0xffffffff81000105", "e8 00 01 00 00");
    assert_eq!(after.rip, CODE + 0x105);
    assert_eq!(after.quadword(STACK - 8), CODE + 5);
    assert_eq!(after.gpr(Gpr::Rsp), STACK - 8);
}

#[test]
fn padded_calls_count_their_padding() {
    let after = kernel()
        .with(Gpr::R11, FUNCTION)
        .after("cs call r11", "2e 41 ff d3");
    assert_eq!(after.quadword(STACK - 8), CODE + 4);
    assert_eq!(after.rip, FUNCTION);
}

#[test]
fn call_through_the_stack_reads_its_target_before_pushing() {
    let after = kernel()
        .holding(STACK, FUNCTION)
        .after("call qword ptr [rsp]", "ff 14 24");
    assert_eq!(after.rip, FUNCTION);
    assert_eq!(after.quadword(STACK - 8), CODE + 3);
    assert_eq!(after.quadword(STACK), FUNCTION);
}

#[test]
fn call_rsp_goes_to_the_old_stack_pointer() {
    let after = kernel().after("call rsp", "ff d4");
    assert_eq!(after.rip, STACK);
}

#[test]
fn ret_can_drop_arguments() {
    let after = kernel()
        .holding(STACK, FUNCTION)
        .after("ret 0x10", "c2 10 00");
    assert_eq!(after.rip, FUNCTION);
    assert_eq!(after.gpr(Gpr::Rsp), STACK + 0x18);
    let after = kernel().holding(STACK, FUNCTION).after("rep ret", "f3 c3");
    assert_eq!(after.rip, FUNCTION);
}

#[test]
fn leave_takes_the_frame_down() {
    let frame = DATA + 0x40;
    let after = kernel()
        .with(Gpr::Rbp, frame)
        .holding(frame, 0x77)
        .after("leave", "c9");
    assert_eq!(after.gpr(Gpr::Rsp), frame + 8);
    assert_eq!(after.gpr(Gpr::Rbp), 0x77);
}
