//! The words for states and tiers.

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
