//! Branches within a function.

use address::Gva;
use hyprobe_introspect::insn::{
    Branch, DecodeError, branch_into, has_indirect_jump, indirect_jump,
};

use super::CODE;

/// `nop; nop; je +2; jmp rax; loop -7; call +0; ret`: the loop goes to offset 1.
const FUNCTION: &[u8] = &[
    0x90, 0x90, 0x74, 0x02, 0xff, 0xe0, 0xe2, 0xf9, 0xe8, 0x00, 0x00, 0x00, 0x00, 0xc3,
];

fn into(from: u64, to: u64) -> Option<Branch> {
    branch_into(FUNCTION, Gva(CODE), &(Gva(CODE + from)..Gva(CODE + to))).expect("all decodes")
}

#[test]
fn branches_into_a_range_are_found() {
    assert_eq!(
        into(1, 2),
        Some(Branch {
            at: Gva(CODE + 6),
            target: Gva(CODE + 1)
        })
    );
    assert_eq!(
        into(6, 7),
        Some(Branch {
            at: Gva(CODE + 2),
            target: Gva(CODE + 6)
        })
    );
    assert_eq!(
        into(13, 14),
        Some(Branch {
            at: Gva(CODE + 8),
            target: Gva(CODE + 13)
        })
    );
    assert_eq!(into(2, 6), None);
}

#[test]
fn indirect_jumps_are_found() {
    assert_eq!(
        indirect_jump(FUNCTION, Gva(CODE), &[]),
        Ok(Some(Gva(CODE + 4)))
    );
    // An indirect call comes back.
    assert_eq!(
        has_indirect_jump(&[0xff, 0xd0, 0xc3], Gva(CODE), &[]),
        Ok(false)
    );
}

#[test]
fn a_jump_to_a_thunk_is_indirect() {
    let jump = [0xe9, 0xfb, 0x0f, 0x00, 0x00];
    let thunks = Gva(CODE + 0x1000)..Gva(CODE + 0x1100);
    assert_eq!(has_indirect_jump(&jump, Gva(CODE), &[]), Ok(false));
    assert_eq!(has_indirect_jump(&jump, Gva(CODE), &[thunks]), Ok(true));
}

#[test]
fn undecodable_bytes_are_an_error() {
    let unknown = Err(DecodeError::Invalid { at: Gva(CODE) });
    assert_eq!(
        has_indirect_jump(&[0x06, 0xff, 0xe0], Gva(CODE), &[]),
        unknown
    );
}
