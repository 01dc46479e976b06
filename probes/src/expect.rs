//! What is expected of a guest: `[[expect]]` of a manifest.

use std::fmt;
use std::time::Duration;

use regex::Regex;

use crate::{GuestEnd, ProbeAction, ProbeKind, ProbeSpec, Word as _};

/// One expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// What it is called, if it has been given a name.
    pub name: Option<String>,
    /// What must come true, or must not.
    pub what: Expected,
    /// Only what happens up to here counts, from the guest's first instruction on.
    pub before: Option<Duration>,
    /// The run ends as soon as this can no longer hold.
    pub stop: bool,
    /// Left out where the kernel has no such function.
    pub optional: bool,
}

/// What must come true, or must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A line of the console.
    Console {
        /// Found anywhere in the line.
        pattern: Pattern,
        /// There must be no such line.
        never: bool,
    },
    /// How often a probe is hit; of a return probe, how many returns it sees.
    Hits {
        /// The probe; a pattern's matches are added up.
        probe: ProbeSpec,
        /// So often.
        count: Count,
    },
    /// Probes are hit one after the other: none before those in front of it have been.
    Order {
        /// In this order.
        probes: Vec<ProbeSpec>,
    },
    /// A function never returns a negative number.
    NeverNegative {
        /// A return probe.
        probe: ProbeSpec,
        /// The function's type.
        width: Width,
    },
    /// A value is seen at least once.
    Seen {
        /// The probe.
        probe: ProbeSpec,
        /// The value.
        value: u64,
        /// Where it is looked for.
        place: ValuePlace,
    },
    /// How the guest ends.
    End(GuestEnd),
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// This often or more.
    AtLeast(u64),
    /// This often or less.
    AtMost(u64),
    /// Neither more nor less.
    Exactly(u64),
}

impl Count {
    /// The most that is allowed.
    pub(crate) const fn most(self) -> u64 {
        match self {
            Self::AtLeast(_) => u64::MAX,
            Self::AtMost(most) | Self::Exactly(most) => most,
        }
    }

    /// The least that is asked for.
    pub(crate) const fn least(self) -> u64 {
        match self {
            Self::AtMost(_) => 0,
            Self::AtLeast(least) | Self::Exactly(least) => least,
        }
    }
}

/// How wide a function's result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// `int`: the upper half of the register means nothing.
    Int,
    /// `long`, `ssize_t`, and pointers that may be an error.
    Long,
}

impl Width {
    /// The number in a register, if it is below zero.
    pub(crate) fn negative(self, register: u64) -> Option<i64> {
        let number = match self {
            Self::Int => {
                let [a, b, c, d, ..] = register.to_le_bytes();
                i64::from(i32::from_le_bytes([a, b, c, d]))
            }
            Self::Long => register.cast_signed(),
        };
        (number < 0).then_some(number)
    }
}

/// Where a value is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePlace {
    /// What a function returns.
    Returned,
    /// An argument, from 0: rdi, rsi, rdx, rcx, r8, r9.
    Argument(usize),
}

/// A regular expression.
#[derive(Clone, Debug)]
pub struct Pattern(pub(crate) Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

impl Expectation {
    /// The probes without which it cannot be judged, and what must be done at their hits.
    #[must_use]
    pub fn probes(&self) -> Vec<(&ProbeSpec, ProbeAction)> {
        match &self.what {
            Expected::Console { .. } | Expected::End(_) => Vec::new(),
            Expected::Hits { probe, count } => {
                // A hit that must not be is told, because it is what one wants to see.
                let told = self.before.is_some() || self.stop || count.most() == 0;
                let action = match told {
                    true => ProbeAction::Trace,
                    false => ProbeAction::Count,
                };
                vec![(probe, action)]
            }
            Expected::Order { probes } => probes
                .iter()
                .map(|probe| (probe, ProbeAction::Trace))
                .collect(),
            Expected::NeverNegative { probe, .. } | Expected::Seen { probe, .. } => {
                vec![(probe, ProbeAction::Trace)]
            }
        }
    }
}

/// Its name, or what it says.
impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            return f.write_str(name);
        }
        match &self.what {
            Expected::Console { pattern, never } => {
                let verb = if *never { "never says" } else { "says" };
                write!(f, "the console {verb} /{}/", pattern.0.as_str())?;
            }
            Expected::Hits { probe, count } => {
                let (verb, never) = match probe.kind {
                    ProbeKind::Kprobe => ("is hit", "is never hit"),
                    ProbeKind::Kretprobe => ("returns", "never returns"),
                };
                match count {
                    Count::AtMost(0) | Count::Exactly(0) => write!(f, "{probe} {never}")?,
                    Count::AtLeast(count) => write!(f, "{probe} {verb} {count} times or more")?,
                    Count::AtMost(count) => write!(f, "{probe} {verb} {count} times at most")?,
                    Count::Exactly(count) => write!(f, "{probe} {verb} {count} times")?,
                }
            }
            Expected::Order { probes } => {
                for (at, probe) in probes.iter().enumerate() {
                    let before = if at == 0 { "" } else { ", then " };
                    write!(f, "{before}{probe}")?;
                }
            }
            Expected::NeverNegative { probe, .. } => {
                write!(f, "{probe} never returns a negative number")?;
            }
            Expected::Seen {
                probe,
                value,
                place,
            } => {
                let value = value.cast_signed();
                match place {
                    ValuePlace::Returned => write!(f, "{probe} returns {value} once")?,
                    ValuePlace::Argument(number) => {
                        write!(f, "{probe} is given {value} as argument {number} once")?;
                    }
                }
            }
            Expected::End(end) => write!(f, "the guest ends by {}", end.word())?,
        }
        match self.before {
            Some(before) => write!(f, " within {before:?}"),
            None => Ok(()),
        }
    }
}
