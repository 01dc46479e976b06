//! The number of a probe.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a probe, never reused in the run. The matches of a pattern in a module share one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProbeId(pub u64);

impl From<u64> for ProbeId {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<ProbeId> for u64 {
    fn from(id: ProbeId) -> Self {
        id.0
    }
}

impl fmt::Display for ProbeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
