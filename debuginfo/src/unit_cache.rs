//! The decoded units that are kept for the next look-ups.

use std::collections::HashMap;
use std::sync::Arc;

use crate::budget::Budget;
use crate::contents::Contents;
use crate::error::LookupError;
use crate::unit_frames::UnitFrames;

/// The most steps of decoding the kept units, a measure of their memory: a step is a row of 32 bytes, or less. A unit of Debian's kernels takes
/// 20 000 steps, the largest 220 000, and a stack goes through fewer than 50 units.
const MAX_KEPT_STEPS: u64 = 8 << 20;

/// The latest units, and the units that cannot be decoded.
#[derive(Debug)]
pub(crate) struct UnitCache {
    units: HashMap<usize, Result<Arc<UnitFrames>, LookupError>>,
    /// The steps of decoding the kept units.
    steps: u64,
    /// The steps for units that cannot be decoded, all together.
    budget: Budget,
}

impl UnitCache {
    /// An empty cache for the units of `contents`.
    pub(crate) fn new(contents: &Contents) -> Self {
        Self {
            units: HashMap::new(),
            steps: 0,
            budget: contents.budget(),
        }
    }

    /// The unit with the index, kept or decoded. Each failure is found once.
    pub(crate) fn unit(
        &mut self,
        index: usize,
        contents: &Contents,
    ) -> Result<Arc<UnitFrames>, LookupError> {
        if let Some(unit) = self.units.get(&index) {
            return unit.clone();
        }
        let mut budget = self.budget;
        let unit = contents.decode(index, &mut budget).map(Arc::new);
        if unit.is_ok() {
            let steps = self.budget.since(budget);
            if self.steps + steps > MAX_KEPT_STEPS {
                self.units.retain(|_, unit| unit.is_err());
                self.steps = 0;
            }
            self.steps += steps;
        } else {
            self.budget = budget;
        }
        self.units.insert(index, unit.clone());
        unit
    }
}
