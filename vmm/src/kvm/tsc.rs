//! The rate of the host's time stamp counter.

use std::time::{Duration, Instant};

const APART: Duration = Duration::from_millis(20);
const TRIES: usize = 16;

/// The rate of the time stamp counter in kHz, measured against the system's clock in some 20 ms.
///
/// QEMU's TCG passes the host's counter to its guest, while its timers follow the system's clock. If a guest kernel
/// calibrates the counter against a timer on a busy host, the result is wrong by the time for which the guest had to wait.
#[must_use]
pub fn tsc_khz() -> u64 {
    let (first, began) = both();
    std::thread::sleep(APART);
    let (last, ended) = both();
    let micros = ended.duration_since(began).as_nanos().max(1) / 1000;
    u64::try_from(u128::from(last.wrapping_sub(first)) * 1000 / micros.max(1)).unwrap_or(0)
}

/// Reads both clocks at the same time: of several tries, the try with the shortest time between the counter's two readings.
fn both() -> (u64, Instant) {
    let attempt = || {
        let before = counter();
        let now = Instant::now();
        let after = counter();
        (after.wrapping_sub(before), before, now)
    };
    let mut best = attempt();
    for _ in 1..TRIES {
        let next = attempt();
        if next.0 < best.0 {
            best = next;
        }
    }
    (best.1, best.2)
}

#[expect(unsafe_code, reason = "the counter has no safe way to be read")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux leaves it to programs unless asked not to.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        let (first, second) = (tsc_khz(), tsc_khz());
        assert!(first > 100_000, "{first} kHz");
        assert!(
            first.abs_diff(second) < first / 50,
            "{first} and {second} kHz"
        );
    }
}
