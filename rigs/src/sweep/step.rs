//! What a sweep prints.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Mode;
use super::outcome::{Finding, FunctionId, Outcome, Tally};

/// Names the functions of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootKey {
    /// A hash of the functions, whatever their order.
    #[serde(with = "hexadecimal")]
    pub functions: u64,
    /// Counts the boots with the same functions.
    pub attempt: u32,
}

impl BootKey {
    /// The key of the first boot with these functions.
    pub(super) fn of(set: &[FunctionId]) -> Self {
        let mut sorted = set.to_vec();
        sorted.sort_unstable();
        // FNV-1a.
        let functions = sorted
            .iter()
            .flat_map(|function| function.0.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        Self {
            functions,
            attempt: 0,
        }
    }

    /// The key of the next boot with the same functions.
    pub(super) const fn again(self) -> Self {
        Self {
            attempt: self.attempt + 1,
            ..self
        }
    }
}

mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{value:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

/// What is swept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How the functions are probed.
    pub mode: Mode,
    /// vCPUs of the guest.
    pub cpus: u8,
    /// What shuffled the functions, and chose instructions.
    pub seed: u64,
    /// Functions of a batch, at most.
    pub batch: usize,
    /// Functions that are booted with a probe.
    pub functions: usize,
    /// Functions of the kernel.
    pub of: usize,
    /// Number of batches.
    pub batches: usize,
    /// Functions that no probe can be on, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// The sum of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Of the boots that went well.
    pub tally: Tally,
    /// Harmful and slow functions.
    pub findings: Vec<Finding>,
    /// Number of boots, the one without probes not counted.
    pub boots: usize,
    /// Number of boots that repeated one with the same functions.
    pub repeats: usize,
    /// Number of boots at which the Linux around the guest died.
    pub restarts: usize,
}

/// One line of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// The sweep begins, or goes on.
    Plan(Plan),
    /// The boot without probes has ended.
    Baseline {
        /// How long it took.
        took_ms: u64,
        /// A boot with probes may take this time.
        limit_ms: u64,
        /// A boot with probes may show nothing for this time.
        silence_ms: u64,
    },
    /// The sweep cannot be made on this KVM.
    Cannot {
        /// Why.
        reason: String,
    },
    /// A boot begins.
    Booting {
        /// Which.
        key: BootKey,
        /// Number of functions.
        functions: usize,
        /// The next line comes within this time, or the Linux around the guest hangs.
        limit_ms: u64,
    },
    /// A boot has ended.
    Booted {
        /// Which.
        key: BootKey,
        /// Number of functions.
        functions: usize,
        /// How long it took.
        took_ms: u64,
        /// What it came to.
        #[serde(flatten)]
        outcome: Outcome,
        /// Whether the Linux around the guest died at it.
        #[serde(default)]
        killed_outer: bool,
    },
    /// A search has ended.
    Found(Finding),
    /// A batch has ended.
    Batch {
        /// From 1.
        number: usize,
        /// Of so many.
        of: usize,
    },
    /// The sweep has ended.
    Sum(Sum),
}

/// As `rig` shows it.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ms: &u64| format!("{}.{} s", ms / 1000, ms % 1000 / 100);
        match self {
            Self::Plan(plan) => write!(
                f,
                "{}, {} vCPUs, seed {}: {} of {} functions in {} batches of {}",
                plan.mode.word(),
                plan.cpus,
                plan.seed,
                plan.functions,
                plan.of,
                plan.batches,
                plan.batch
            ),
            Self::Baseline {
                took_ms,
                limit_ms,
                silence_ms,
            } => write!(
                f,
                "without probes: {}; limits: {}, {} without a line",
                seconds(took_ms),
                seconds(limit_ms),
                seconds(silence_ms)
            ),
            Self::Cannot { reason } => write!(f, "cannot: {reason}"),
            Self::Booting { key, functions, .. } => {
                write!(f, "boot {:016x} with {functions} functions", key.functions)
            }
            Self::Booted {
                key,
                functions,
                took_ms,
                outcome,
                killed_outer,
            } => {
                let repeat = if key.attempt > 0 { ", a repeat" } else { "" };
                let outer = if *killed_outer { ", restart" } else { "" };
                write!(
                    f,
                    "  {functions} functions, {}{repeat}{outer}: {outcome}",
                    seconds(took_ms)
                )
            }
            Self::Found(found) => write!(
                f,
                "FOUND {:?}: {}: {}",
                found.kind,
                found.functions.join(", "),
                found.reason
            ),
            Self::Batch { number, of } => write!(f, "batch {number} of {of} is done"),
            Self::Sum(sum) => write!(
                f,
                "{} functions probed, {} findings, {} refused; {} boots, {} of them repeats, {} restarts; {} hits, {} exits, \
                 missed {:?}",
                sum.tally.probed,
                sum.findings.len(),
                sum.tally.refused.values().sum::<u64>(),
                sum.boots,
                sum.repeats,
                sum.restarts,
                sum.tally.hits,
                sum.tally.exits,
                sum.tally.missed
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;

    #[test]
    fn key_does_not_depend_on_the_order() {
        let set = [FunctionId(1), FunctionId(70_000), FunctionId(3)];
        let other = [set[2], set[0], set[1]];
        assert_eq!(BootKey::of(&set), BootKey::of(&other));
        assert_ne!(BootKey::of(&set), BootKey::of(&set[..2]));
    }

    #[test]
    fn step_is_found_in_a_line() {
        let step = Step::Booted {
            key: BootKey::of(&[FunctionId(7)]),
            functions: 1,
            took_ms: 20,
            outcome: Outcome::Harmed {
                reason: "triple-fault".to_owned(),
                suspects: vec![FunctionId(7)],
            },
            killed_outer: false,
        };
        let line = Line::Sweep(step);
        let json = serde_json::to_string(&line).expect("json");
        assert_eq!(
            Line::find(&format!("[ 1.0] {json}\r\n")),
            Some(line),
            "{json}"
        );
    }
}
