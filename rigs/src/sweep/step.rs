//! The lines that a sweep prints.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Mode;
use super::outcome::{Finding, FunctionId, Outcome, Tally};

/// The key of a boot, from its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootKey {
    /// A hash of the functions, independent of their order.
    #[serde(with = "hexadecimal")]
    pub functions: u64,
    /// The number of the boot among boots with the same functions.
    pub attempt: u32,
}

impl BootKey {
    /// The key of the first boot of `set`.
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

/// The plan of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How the functions are probed.
    pub mode: Mode,
    /// vCPUs of the guest.
    pub cpus: u8,
    /// The seed for the order of functions and the choice of instructions.
    pub seed: u64,
    /// The maximum number of functions in a batch.
    pub batch: usize,
    /// The number of functions booted with a probe.
    pub functions: usize,
    /// Functions of the kernel.
    pub of: usize,
    /// Number of batches.
    pub batches: usize,
    /// Functions that cannot be probed, by reason.
    pub refused: BTreeMap<String, u64>,
    /// The hash of the program that sweeps, with the engine: a sweep is continued by the same program only.
    #[serde(default)]
    pub program: String,
    /// The hash of the probes in their order, and of the guest's kernel and initramfs.
    #[serde(default)]
    pub guest: String,
}

/// The sum of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// The tally of the boots that went well.
    pub tally: Tally,
    /// Harmful and slow functions.
    pub findings: Vec<Finding>,
    /// Number of boots, without the baseline.
    pub boots: usize,
    /// Number of repeated boots, with the same functions as an earlier boot.
    pub repeats: usize,
    /// Number of boots at which the Linux around the guest died.
    pub restarts: usize,
}

/// One line of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// The sweep begins, or continues.
    Plan(Plan),
    /// The boot without probes has ended.
    Baseline {
        /// The duration of the boot.
        took_ms: u64,
        /// The time limit of a boot with probes.
        limit_ms: u64,
        /// The limit for the silence of a boot with probes.
        silence_ms: u64,
    },
    /// The sweep cannot be made on this KVM.
    Cannot {
        /// The reason.
        reason: String,
    },
    /// A boot begins.
    Booting {
        /// The boot's key.
        key: BootKey,
        /// Number of functions.
        functions: usize,
        /// The time limit for the next line; beyond it, the Linux around the guest hangs.
        limit_ms: u64,
    },
    /// A boot has ended.
    Booted {
        /// The boot's key.
        key: BootKey,
        /// Number of functions.
        functions: usize,
        /// The duration of the boot.
        took_ms: u64,
        /// The outcome of the boot.
        #[serde(flatten)]
        outcome: Outcome,
        /// Whether the Linux around the guest died during the boot.
        #[serde(default)]
        killed_outer: bool,
    },
    /// A search has ended.
    Found(Finding),
    /// A batch has ended.
    Batch {
        /// The batch's number, from 1.
        number: usize,
        /// The number of batches.
        of: usize,
    },
    /// The sweep has ended.
    Sum(Sum),
}

/// The text that `rig` prints.
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
