//! Calls, looked at from the instruction behind them.

/// The longest call, bytes.
pub const MAX_CALL_BYTES: usize = 7;

/// Whether the bytes end with a call: direct, or through a register or memory.
#[must_use]
pub fn ends_with_call(bytes: &[u8]) -> bool {
    let back = |n: usize| bytes.len().checked_sub(n).and_then(|at| bytes.get(at..));
    let through = |n, modes: &[u8]| {
        // Value 2 in the field between mode and register means a call.
        matches!(back(n), Some([0xff, mode, ..]) if mode & 0x38 == 0x10 && modes.contains(&(mode >> 6)))
    };
    matches!(back(5), Some([0xe8, ..]))
        || through(2, &[0, 3])
        || through(3, &[0, 1])
        || through(4, &[1])
        || through(6, &[0, 2])
        || through(7, &[0, 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_their_bytes() {
        for call in [
            &[0xe8, 1, 2, 3, 4][..],         // call rel32
            &[0xff, 0xd0],                   // call rax
            &[0x41, 0xff, 0xd3],             // call r11
            &[0xff, 0x10],                   // call [rax]
            &[0xff, 0x50, 0x18],             // call [rax+0x18]
            &[0xff, 0x54, 0x24, 0x08],       // call [rsp+8]
            &[0xff, 0x15, 1, 2, 3, 4],       // call [rip+…]
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4], // call [rax*8+…]
        ] {
            let mut bytes = vec![0x90; MAX_CALL_BYTES];
            bytes.extend(call);
            assert!(ends_with_call(&bytes[call.len()..]), "{call:x?}");
        }
        for other in [
            [0x90; 7],
            [0xff, 0x25, 1, 2, 3, 4, 5],
            [0xe9, 0, 0, 0xe9, 0, 0, 0],
        ] {
            assert!(!ends_with_call(&other), "{other:x?}");
        }
    }
}
