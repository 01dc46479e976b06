//! Boundaries of instructions.

use address::Gva;
use hyprobe_introspect::insn::{DecodeError, NotABoundary, boundaries, check_boundary, decode};

use super::CODE;

/// `endbr64; push rbp; mov rbp, rsp; sub rsp, 0x10; ret`
const FUNCTION: &[u8] = &[
    0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0xc3,
];

#[test]
fn a_sweep_finds_every_start() {
    let starts: Vec<u64> = boundaries(FUNCTION, Gva(CODE))
        .map(|found| found.expect("code").at().0 - CODE)
        .collect();
    assert_eq!(starts, [0, 4, 5, 8, 12]);
}

#[test]
fn sweep_ends_at_an_invalid_instruction() {
    let bytes = [0x90, 0x06, 0x90];
    let mut sweep = boundaries(&bytes, Gva(CODE));
    assert!(sweep.next().is_some_and(|found| found.is_ok()));
    assert_eq!(
        sweep.next(),
        Some(Err(DecodeError::Invalid { at: Gva(CODE + 1) }))
    );
    assert_eq!(sweep.next(), None);
}

#[test]
fn a_start_is_accepted() {
    let decoded = check_boundary(FUNCTION, Gva(CODE), 5).expect("a boundary");
    assert_eq!(decoded.text(), "mov rbp, rsp");
    assert_eq!(
        (decoded.at(), decoded.next()),
        (Gva(CODE + 5), Gva(CODE + 8))
    );
}

#[test]
fn the_middle_of_an_instruction_is_explained() {
    let error = check_boundary(FUNCTION, Gva(CODE), 7).expect_err("inside");
    assert_eq!(
        error.to_string(),
        "offset 0x7 is inside the instruction `mov rbp, rsp`, which begins at offset 0x5; the \
         next one begins at offset 0x8"
    );
}

#[test]
fn the_end_is_not_a_boundary() {
    let error = check_boundary(FUNCTION, Gva(CODE), 13).expect_err("past the end");
    assert_eq!(
        error,
        NotABoundary::PastTheEnd {
            offset: 13,
            size: 13
        }
    );
}

#[test]
fn a_cut_function_is_not_guessed_at() {
    let error = check_boundary(&FUNCTION[..7], Gva(CODE), 6).expect_err("cut");
    let source = DecodeError::Truncated {
        at: Gva(CODE + 5),
        have: 2,
    };
    assert_eq!(error, NotABoundary::Undecodable { offset: 6, source });
}

#[test]
fn too_long_is_invalid_and_too_short_is_truncated() {
    assert_eq!(
        decode(&[0x66; 20], Gva(1)),
        Err(DecodeError::Invalid { at: Gva(1) })
    );
    assert_eq!(
        decode(&[0x66; 3], Gva(1)),
        Err(DecodeError::Truncated {
            at: Gva(1),
            have: 3
        })
    );
    assert_eq!(
        decode(&[], Gva(1)),
        Err(DecodeError::Truncated {
            at: Gva(1),
            have: 0
        })
    );
}
