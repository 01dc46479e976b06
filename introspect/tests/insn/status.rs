//! The flags register, and instructions dependent on the privilege level.

use hyprobe_introspect::insn::{Gpr, Outcome, Reason};
use reference::Machine;

use super::{CODE, STACK, kernel};

const CARRY: u64 = 1;
const TRAP: u64 = 1 << 8;
const INTERRUPT: u64 = 1 << 9;
const IO_LEVEL: u64 = 3 << 12;
const RESUME: u64 = 1 << 16;
const ALIGNMENT: u64 = 1 << 18;

#[test]
fn pushf_shows_no_trap_flag_and_no_resume_flag() {
    let after = kernel().with_flags(RESUME | CARRY).after("pushfq", "9c");
    assert_eq!(after.quadword(STACK - 8), 0x203);
}

#[test]
fn a_guest_that_steps_itself_is_left_alone() {
    let outcome = kernel().with_flags(TRAP).refused("nop", "90");
    assert_eq!(outcome, Outcome::Unsupported(Reason::GuestTrapFlag));
    let outcome = kernel().holding(STACK, 0x302).refused("popfq", "9d");
    assert_eq!(outcome, Outcome::Unsupported(Reason::GuestTrapFlag));
}

#[test]
fn completing_clears_the_resume_flag() {
    let after = kernel().with_flags(RESUME).after("nop", "90");
    assert_eq!(after.rflags, 0x202);
}

#[test]
fn popf_changes_the_flags_that_the_privilege_level_allows() {
    let image = CARRY | IO_LEVEL;
    let kernel_after = kernel().holding(STACK, image).after("popfq", "9d");
    assert_eq!(kernel_after.rflags, 2 | image);

    let program = Machine {
        privilege_level: 3,
        ..kernel()
    };
    let after = program.clone().holding(STACK, image).after("popfq", "9d");
    assert_eq!(after.rflags, 0x202 | CARRY);

    let driver = program.with_flags(IO_LEVEL);
    let after = driver.holding(STACK, CARRY).after("popfq", "9d");
    assert_eq!(after.rflags, 2 | IO_LEVEL | CARRY);
}

#[test]
fn interrupts_are_turned_off_only_with_the_privilege() {
    let after = kernel().after("cli", "fa");
    assert_eq!((after.rflags & INTERRUPT, after.rip), (0, CODE + 1));
    let program = Machine {
        privilege_level: 3,
        ..kernel()
    };
    let outcome = program.refused("cli", "fa");
    assert_eq!(outcome, Outcome::Unsupported(Reason::PrivilegeLevel));
}

#[test]
fn user_access_is_opened_and_closed_by_the_kernel_only() {
    let open = kernel().after("stac", "0f 01 cb");
    assert_eq!(open.rflags, 0x202 | ALIGNMENT);
    let mut open = open;
    open.rip = CODE;
    assert_eq!(open.after("clac", "0f 01 ca").rflags, 0x202);
    let program = Machine {
        privilege_level: 3,
        ..kernel()
    };
    let outcome = program.refused("stac", "0f 01 cb");
    assert_eq!(outcome, Outcome::Unsupported(Reason::PrivilegeLevel));
}

#[test]
fn ah_takes_five_flags() {
    let after = kernel().with_flags(0x8d5).after("lahf", "9f");
    assert_eq!(after.gpr(Gpr::Rax), 0xd700);
}
