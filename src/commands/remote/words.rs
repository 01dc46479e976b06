//! The words for states, tiers and times.

use control::api::MachineState;
use events::{ProbeState, Tier};

pub(super) const fn machine(state: MachineState) -> &'static str {
    match state {
        MachineState::Running => "running",
        MachineState::Paused => "paused",
        MachineState::Ending => "ending",
    }
}

pub(super) const fn probe(state: ProbeState) -> &'static str {
    match state {
        ProbeState::Armed => "armed",
        ProbeState::Pending => "pending",
        ProbeState::Disabled => "disabled",
        ProbeState::Gone => "gone",
        ProbeState::Refused => "refused",
    }
}

pub(super) const fn tier(tier: Option<Tier>) -> &'static str {
    match tier {
        None => "-",
        Some(Tier::Emulated) => "emulated",
        Some(Tier::Optimised) => "optimised",
        Some(Tier::Relocated) => "relocated",
        Some(Tier::Stepped) => "stepped",
    }
}

/// Nanoseconds as people read them.
pub(super) fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{}.{} µs", ns / 1000, ns / 100 % 10),
        _ => format!("{}.{} ms", ns / 1_000_000, ns / 100_000 % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_that_suits_them() {
        assert_eq!(time(9_999), "9999 ns");
        assert_eq!(time(12_345), "12.3 µs");
        assert_eq!(time(12_345_678), "12.3 ms");
    }
}
