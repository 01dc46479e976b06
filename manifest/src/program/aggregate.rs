//! Aggregates: the values of many hits combined.
//!
//! ```text
//!  word     0            1              ..
//!  sum      count of     sum
//!  min      values       least value
//!  max                   greatest value
//!  hist                  0 │ 1 │ 2..4 │ 4..8 │ .. │ from 2^63 on            65 buckets
//!  lhist                 below min │ from min, step wide │ .. │ the rest     at most 1002 buckets
//! ```
//!
//! Each word is written separately, with one atomic operation: `lock add`, `lock inc` or `lock cmpxchg`. A reader concurrent with writers
//! may find a value in word 0 that is not yet in the other word, or the other way round.
//!
//! Values are signed, as in bpftrace, for `min`, `max` and `lhist`; a sum is modulo 2^64. Only `hist` treats values as unsigned, so that an
//! address has a bucket.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::ProbeKind;

use super::{AggregateResult, Operand, ProgramError, parse};

/// The function that combines the values of all hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    /// The sum of all values.
    Sum(Operand),
    /// The least value.
    Min(Operand),
    /// The greatest value.
    Max(Operand),
    /// The number of values between one power of two and the next.
    Hist(Operand),
    /// The number of values in each of several ranges of equal size.
    Lhist {
        /// The operand.
        of: Operand,
        /// The ranges.
        linear: Linear,
    },
}

/// The ranges of a linear histogram: one below the minimum, `ranges` with width `step`, and one for all greater values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Linear {
    min: i64,
    max: i64,
    step: u64,
    ranges: usize,
}

/// Invalid ranges of a linear histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinearError {
    /// The maximum is not above the minimum.
    #[error("the histogram ends at {max}, which is not above its beginning at {min}")]
    NoRange {
        /// The minimum.
        min: i64,
        /// The maximum.
        max: i64,
    },
    /// The step is 0, or larger than the whole range.
    #[error("the step must be from 1 to {range}, the size of the whole range")]
    BadStep {
        /// The size of the whole range.
        range: u64,
    },
    /// The histogram would have too many ranges.
    #[error(
        "the histogram would have {would} ranges, of which it can have {}",
        Linear::MAX_RANGES
    )]
    TooManyRanges {
        /// The number of ranges.
        would: u64,
    },
}

impl Linear {
    /// The maximum number of ranges, without the ranges at the two ends.
    pub const MAX_RANGES: usize = 1000;

    /// Ranges from `min` to `max`. If `step` does not divide the whole range, the remainder belongs to the last bucket.
    ///
    /// # Errors
    ///
    /// If the step or the limits allow no range, or the ranges would be more than [`MAX_RANGES`](Self::MAX_RANGES).
    pub fn new(min: i64, max: i64, step: u64) -> Result<Self, LinearError> {
        if max <= min {
            return Err(LinearError::NoRange { min, max });
        }
        let range = max.abs_diff(min);
        if step == 0 || step > range {
            return Err(LinearError::BadStep { range });
        }
        let would = range / step;
        let ranges = usize::try_from(would)
            .ok()
            .filter(|ranges| *ranges <= Self::MAX_RANGES)
            .ok_or(LinearError::TooManyRanges { would })?;
        Ok(Self {
            min,
            max,
            step,
            ranges,
        })
    }

    /// The beginning of the first range.
    #[must_use]
    pub const fn min(&self) -> i64 {
        self.min
    }

    /// The end of the ranges, as requested.
    #[must_use]
    pub const fn max(&self) -> i64 {
        self.max
    }

    /// The size of a range; never 0.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// The number of ranges between the buckets at the two ends.
    #[must_use]
    pub const fn ranges(&self) -> usize {
        self.ranges
    }

    /// The beginning of the range with the given number, from 0. For the number of ranges: the beginning of the last bucket.
    #[must_use]
    pub const fn start_of(&self, range: usize) -> i64 {
        self.min
            .wrapping_add_unsigned(self.step.wrapping_mul(range as u64))
    }

    fn bucket_of(&self, value: i64) -> usize {
        if value < self.min {
            return 0;
        }
        let ranges = self.ranges();
        if value >= self.start_of(ranges) {
            return ranges + 1;
        }
        let range = usize::try_from(value.abs_diff(self.min) / self.step);
        1 + range.unwrap_or(ranges)
    }
}

/// An aggregate of an argument in a return probe: the argument is gone after the function's return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{of}` is gone when the function has returned, which is when a return probe takes its values"
)]
pub struct NotAtReturn {
    /// The argument.
    pub of: Operand,
}

impl NotAtReturn {
    /// A possible solution.
    #[must_use]
    pub fn help(&self) -> String {
        format!(
            "retval is what it has returned; for `{}`, write a kprobe",
            self.of
        )
    }
}

/// The word that counts the values.
pub(super) const COUNT: usize = 0;
/// The first word behind [`COUNT`].
pub(super) const FIRST: usize = 1;
/// The bucket for zero, and a bucket for each possible highest bit.
const HIST_BUCKETS: usize = 65;

impl Aggregate {
    /// The operand of the values.
    #[must_use]
    pub const fn of(&self) -> Operand {
        match self {
            Self::Sum(of)
            | Self::Min(of)
            | Self::Max(of)
            | Self::Hist(of)
            | Self::Lhist { of, .. } => *of,
        }
    }

    /// Checks whether a probe of this kind can read the values.
    ///
    /// # Errors
    ///
    /// If the values are gone at the time of the hit.
    pub fn fits(&self, kind: ProbeKind) -> Result<(), NotAtReturn> {
        match self.of() {
            of @ Operand::Argument(_) if kind.is_return() => Err(NotAtReturn { of }),
            _ => Ok(()),
        }
    }

    /// The result in `words`.
    #[must_use]
    pub fn result(&self, words: &[u64]) -> AggregateResult {
        AggregateResult::new(self, words)
    }

    /// The number of words of the result.
    #[must_use]
    pub const fn words(&self) -> usize {
        match self {
            Self::Sum(_) | Self::Min(_) | Self::Max(_) => FIRST + 1,
            Self::Hist(_) => FIRST + HIST_BUCKETS,
            Self::Lhist { linear, .. } => FIRST + linear.ranges() + 2,
        }
    }

    /// The words before the first value.
    #[must_use]
    pub fn initial(&self) -> Vec<u64> {
        let mut words = vec![0; self.words()];
        match self {
            Self::Min(_) => words[FIRST] = i64::MAX.cast_unsigned(),
            Self::Max(_) => words[FIRST] = i64::MIN.cast_unsigned(),
            Self::Sum(_) | Self::Hist(_) | Self::Lhist { .. } => (),
        }
        words
    }

    /// The number of the bucket of `value`, from 0; 0 for aggregates without buckets. The bucket's word is the first word behind the count
    /// plus the number.
    #[must_use]
    pub fn bucket_of(&self, value: u64) -> usize {
        match self {
            Self::Sum(_) | Self::Min(_) | Self::Max(_) => 0,
            Self::Hist(_) => (u64::BITS - value.leading_zeros()) as usize,
            Self::Lhist { linear, .. } => linear.bucket_of(value.cast_signed()),
        }
    }

    /// Adds `value` to the result in `words`, whose first contents are [`initial`](Self::initial). Any thread may call the function.
    pub fn add(&self, words: &[AtomicU64], value: u64) {
        let (Some(count), Some(word)) =
            (words.get(COUNT), words.get(FIRST + self.bucket_of(value)))
        else {
            return;
        };
        let replace = |is_better: fn(i64, i64) -> bool| {
            let better = |now: u64| is_better(value.cast_signed(), now.cast_signed());
            // The result of the exchange does not matter.
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                better(now).then_some(value)
            });
        };
        match self {
            Self::Sum(_) => drop(word.fetch_add(value, Ordering::Relaxed)),
            Self::Min(_) => replace(|value, now| value < now),
            Self::Max(_) => replace(|value, now| value > now),
            Self::Hist(_) | Self::Lhist { .. } => increment(word),
        }
        increment(count);
    }

    /// Adds the result in `other` to the result in `words`. A sum wraps, as [`add`](Self::add) does. A count ends at the greatest number:
    /// a guest's kernel can write any number to the counters of detours.
    pub fn merge(&self, words: &mut [u64], other: &[u64]) {
        for (index, (word, other)) in words.iter_mut().zip(other).enumerate() {
            let (signed, other_signed) = (word.cast_signed(), other.cast_signed());
            *word = match self {
                Self::Min(_) if index == FIRST => signed.min(other_signed).cast_unsigned(),
                Self::Max(_) if index == FIRST => signed.max(other_signed).cast_unsigned(),
                Self::Sum(_) if index == FIRST => word.wrapping_add(*other),
                _ => word.saturating_add(*other),
            };
        }
    }
}

/// Counts a value. A count ends at the greatest number.
fn increment(count: &AtomicU64) {
    // An error means that the count has ended.
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
        now.checked_add(1)
    });
}

impl FromStr for Aggregate {
    type Err = ProgramError;

    fn from_str(text: &str) -> Result<Self, ProgramError> {
        parse::aggregate(text)
    }
}

/// Prints the text that parses to the same aggregate.
impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum(of) => write!(f, "sum({of})"),
            Self::Min(of) => write!(f, "min({of})"),
            Self::Max(of) => write!(f, "max({of})"),
            Self::Hist(of) => write!(f, "hist({of})"),
            Self::Lhist { of, linear } => {
                let Linear { min, max, step, .. } = linear;
                write!(f, "lhist({of}, {min}, {max}, {step})")
            }
        }
    }
}

impl Serialize for Aggregate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Aggregate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}
