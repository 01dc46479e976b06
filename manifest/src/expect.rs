//! Expectations of a guest: `[[expect]]` of a manifest.

use std::fmt;
use std::time::Duration;

use regex::Regex;

use crate::{Allowed, GuestEnd, ProbeAction, ProbeSpec, Word as _};

/// One expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The name, if given.
    pub name: Option<String>,
    /// The condition.
    pub what: Expected,
    /// Only events up to this time count, from the guest's first instruction on.
    pub before: Option<Duration>,
    /// The run ends as soon as the expectation can no longer hold.
    pub stop: bool,
    /// The expectation is left out if the kernel has no such function.
    pub optional: bool,
}

/// The condition of an expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A line of the console.
    Console {
        /// The pattern, found anywhere in the line.
        pattern: Pattern,
        /// The console must have no such line.
        never: bool,
    },
    /// The number of hits of a probe, or of returns of a return probe.
    Hits {
        /// The probe; the matches of a pattern are added up.
        probe: ProbeSpec,
        /// The number.
        count: Count,
    },
    /// Probes are hit in order: no probe before all probes in front of it.
    Order {
        /// The probes, in order.
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
        /// The place of the value.
        place: ValuePlace,
    },
    /// A watchpoint has no other accesses than the allowed ones.
    Accesses {
        /// The watchpoint.
        probe: ProbeSpec,
        /// The accesses.
        allowed: Allowed,
    },
    /// The end of the guest.
    End(GuestEnd),
}

/// A condition on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// This number or more.
    AtLeast(u64),
    /// This number or less.
    AtMost(u64),
    /// Exactly this number.
    Exactly(u64),
}

impl Count {
    /// The maximum.
    #[must_use]
    pub const fn most(self) -> u64 {
        match self {
            Self::AtLeast(_) => u64::MAX,
            Self::AtMost(most) | Self::Exactly(most) => most,
        }
    }

    /// The minimum.
    #[must_use]
    pub const fn least(self) -> u64 {
        match self {
            Self::AtMost(_) => 0,
            Self::AtLeast(least) | Self::Exactly(least) => least,
        }
    }
}

/// The width of a function's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// `int`: the upper half of the register means nothing.
    Int,
    /// `long`, `ssize_t`, and pointers that may be an error.
    Long,
}

impl Width {
    /// The number in a register, if negative.
    #[must_use]
    pub fn negative(self, register: u64) -> Option<i64> {
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

/// The place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePlace {
    /// The return value of a function.
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

impl Pattern {
    /// Whether the pattern is found anywhere in `line`.
    #[must_use]
    pub fn is_in(&self, line: &str) -> bool {
        self.0.is_match(line)
    }
}

impl Expectation {
    /// The probes required to judge the expectation, with their actions.
    #[must_use]
    pub fn probes(&self) -> Vec<(&ProbeSpec, ProbeAction)> {
        match &self.what {
            Expected::Console { .. } | Expected::End(_) => Vec::new(),
            Expected::Hits { probe, count } => {
                // A forbidden hit is an event, because the user wants to see it.
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
            Expected::NeverNegative { probe, .. }
            | Expected::Seen { probe, .. }
            | Expected::Accesses { probe, .. } => vec![(probe, ProbeAction::Trace)],
        }
    }
}

impl Expectation {
    /// The specifications of the probes, for replacement by those of their places.
    pub fn specs_mut(&mut self) -> Vec<&mut ProbeSpec> {
        match &mut self.what {
            Expected::Console { .. } | Expected::End(_) => Vec::new(),
            Expected::Order { probes } => probes.iter_mut().collect(),
            Expected::Hits { probe, .. }
            | Expected::NeverNegative { probe, .. }
            | Expected::Seen { probe, .. }
            | Expected::Accesses { probe, .. } => vec![probe],
        }
    }
}

/// Prints the expectation's name, or its condition.
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
                let (verb, never) = match probe.kind.is_return() {
                    false => ("is hit", "is never hit"),
                    true => ("returns", "never returns"),
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
            Expected::Accesses { probe, allowed } => write!(f, "{probe} {allowed}")?,
            Expected::End(end) => write!(f, "the guest ends by {}", end.word())?,
        }
        match self.before {
            Some(before) => write!(f, " within {before:?}"),
            None => Ok(()),
        }
    }
}
