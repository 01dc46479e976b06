//! Injected faults: `[[inject]]` of a manifest.

use serde::{Deserialize, Serialize};

use crate::ProbeSpec;

/// A function that returns a value at once at some of its calls, instead of running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Injection {
    /// The function.
    pub at: ProbeSpec,
    /// The calls that return at once.
    pub due: Due,
    /// The return value: RAX.
    pub value: u64,
    /// The name of the tasks whose calls count.
    pub comm: Option<String>,
}

/// The calls that do not run, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Due {
    /// The call with the given number.
    OnHit(u64),
    /// Each call whose number is a multiple of the given number, which is not 0.
    Every(u64),
}
