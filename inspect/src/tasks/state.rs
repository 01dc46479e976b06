//! The letter of a task's state.

const UNINTERRUPTIBLE: u64 = 0x2;
/// The states with letters of their own, from the lowest bit: S, D, T, t, X, Z, P.
const REPORTED: u64 = 0x7f;
/// `TASK_IDLE`: an uninterruptible sleep that does not count as load.
const IDLE: u64 = 0x402;
/// `TASK_RTLOCK_WAIT`, `TASK_FROZEN`: the kernel shows them as uninterruptible sleep.
const SHOWN_AS_SLEEP: u64 = 0x1000 | 0x8000;
const LETTERS: [char; 9] = ['R', 'S', 'D', 'T', 't', 'X', 'Z', 'P', 'I'];

/// The letter of `/proc/PID/stat`, as the kernel's `task_state_index` chooses it. 5.10 to 7.2 have the same numbers; 5.10 does not use the
/// bits that it lacks.
pub(super) fn letter(state: u64, exit_state: u64) -> char {
    let reported = if state & SHOWN_AS_SLEEP != 0 {
        UNINTERRUPTIBLE
    } else if state & IDLE == IDLE {
        REPORTED + 1
    } else {
        (state | exit_state) & REPORTED
    };
    let index = usize::try_from(u64::BITS - reported.leading_zeros());
    index
        .ok()
        .and_then(|index| LETTERS.get(index))
        .copied()
        .unwrap_or('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_letters_of_ps() {
        for (state, exit_state, expected) in [
            (0, 0, 'R'),
            (1, 0, 'S'),
            (2, 0, 'D'),
            // Killable, and about to be woken.
            (0x102, 0, 'D'),
            (0x200, 0, 'R'),
            (0x104, 0, 'T'),
            (0x108, 0, 't'),
            (0x40, 0, 'P'),
            (0x402, 0, 'I'),
            // Freezable.
            (0x2402, 0, 'I'),
            (0x2001, 0, 'S'),
            (0x8000, 0, 'D'),
            (0x80, 0x20, 'Z'),
            (0x80, 0x10, 'X'),
            // New.
            (0x800, 0, 'R'),
        ] {
            assert_eq!(
                letter(state, exit_state),
                expected,
                "{state:#x} {exit_state:#x}"
            );
        }
    }
}
