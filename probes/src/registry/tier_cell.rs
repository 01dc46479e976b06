//! How a probe's hits step over the instruction.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use events::Tier;

const NONE: u8 = 0;
const EMULATED: u8 = 1;
const RELOCATED: u8 = 2;
const STEPPED: u8 = 3;

/// The tier of a probe. Any vCPU notes a tier; the thread that has paused the vCPUs notes jumps.
#[derive(Debug, Default)]
pub(crate) struct TierCell {
    costliest: AtomicU8,
    /// Whether a jump or an `int3` replaces the plant.
    optimised: AtomicBool,
}

impl TierCell {
    /// Notes whether a jump or an `int3` replaces the plant.
    pub(crate) fn set_optimised(&self, optimised: bool) {
        self.optimised.store(optimised, Ordering::Relaxed);
    }

    /// Notes how the vCPU stepped over the instruction. The costliest tier remains, since the tier explains the cost.
    pub(crate) fn passed_by(&self, tier: Tier) {
        let value = match tier {
            // The vCPU does not exit.
            Tier::Optimised => NONE,
            Tier::Emulated => EMULATED,
            Tier::Relocated => RELOCATED,
            Tier::Stepped => STEPPED,
        };
        self.costliest.fetch_max(value, Ordering::Relaxed);
    }

    /// The tier; `None` before the first hit or jump.
    pub(super) fn get(&self) -> Option<Tier> {
        if self.optimised.load(Ordering::Relaxed) {
            return Some(Tier::Optimised);
        }
        match self.costliest.load(Ordering::Relaxed) {
            EMULATED => Some(Tier::Emulated),
            RELOCATED => Some(Tier::Relocated),
            STEPPED => Some(Tier::Stepped),
            _ => None,
        }
    }
}
