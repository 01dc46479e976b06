//! The result of an aggregate, for people and for JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::aggregate::{COUNT, FIRST};
use super::{Aggregate, Linear};

/// The result of an aggregate. Numbers are 64 bits wide: a JSON reader that uses floating-point numbers rounds values beyond 2^53.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum AggregateResult {
    /// The sum of all values, modulo 2^64.
    Sum {
        /// The operand, in the syntax of programs.
        of: String,
        /// The number of values.
        count: u64,
        /// The sum.
        value: i64,
    },
    /// The least value; values are signed.
    Min {
        /// The operand, in the syntax of programs.
        of: String,
        /// The number of values.
        count: u64,
        /// The least value; absent without values.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        value: Option<i64>,
    },
    /// The greatest value; values are signed.
    Max {
        /// The operand, in the syntax of programs.
        of: String,
        /// The number of values.
        count: u64,
        /// The greatest value; absent without values.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        value: Option<i64>,
    },
    /// The number of values between powers of two; values are unsigned.
    Hist {
        /// The operand, in the syntax of programs.
        of: String,
        /// The number of values.
        count: u64,
        /// The buckets from the first to the last that is not empty.
        buckets: Vec<HistBucket>,
    },
    /// The number of values in ranges of equal size; values are signed.
    Lhist {
        /// The operand, in the syntax of programs.
        of: String,
        /// The number of values.
        count: u64,
        /// The buckets from the first to the last that is not empty.
        buckets: Vec<LhistBucket>,
    },
}

/// The number of values in a range of unsigned numbers.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistBucket {
    /// The least value of the range.
    pub min: u64,
    /// The greatest value of the range.
    pub max: u64,
    /// The number of values.
    pub count: u64,
}

/// The number of values in a range of signed numbers.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LhistBucket {
    /// The least value of the range; absent if the range has no lower end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub min: Option<i64>,
    /// The greatest value of the range; absent if the range has no upper end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max: Option<i64>,
    /// The number of values.
    pub count: u64,
}

impl AggregateResult {
    pub(super) fn new(aggregate: &Aggregate, words: &[u64]) -> Self {
        let of = aggregate.of().to_string();
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        let count = word(COUNT);
        let value = word(FIRST).cast_signed();
        let if_any = (count > 0).then_some(value);
        match aggregate {
            Aggregate::Sum(_) => Self::Sum { of, count, value },
            Aggregate::Min(_) => Self::Min {
                of,
                count,
                value: if_any,
            },
            Aggregate::Max(_) => Self::Max {
                of,
                count,
                value: if_any,
            },
            Aggregate::Hist(_) => Self::Hist {
                of,
                count,
                buckets: filled(words, hist_bucket),
            },
            Aggregate::Lhist { linear, .. } => Self::Lhist {
                of,
                count,
                buckets: filled(words, |bucket, count| lhist_bucket(linear, bucket, count)),
            },
        }
    }

    /// The number of values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        match self {
            Self::Sum { count, .. }
            | Self::Min { count, .. }
            | Self::Max { count, .. }
            | Self::Hist { count, .. }
            | Self::Lhist { count, .. } => *count,
        }
    }
}

/// The buckets from the first to the last that is not empty.
fn filled<B>(words: &[u64], bucket: impl Fn(usize, u64) -> B) -> Vec<B> {
    let counts = words.get(FIRST..).unwrap_or_default();
    let is_filled = |count: &u64| *count > 0;
    let first = counts.iter().position(is_filled).unwrap_or(counts.len());
    let end = counts
        .iter()
        .rposition(is_filled)
        .map_or(first, |last| last + 1);
    (first..end).map(|at| bucket(at, counts[at])).collect()
}

fn hist_bucket(bucket: usize, count: u64) -> HistBucket {
    let (min, max) = match bucket {
        0 => (0, 0),
        // From the highest bit alone to the highest bit with all lower bits.
        _ => (1 << (bucket - 1), u64::MAX >> (64 - bucket)),
    };
    HistBucket { min, max, count }
}

fn lhist_bucket(linear: &Linear, bucket: usize, count: u64) -> LhistBucket {
    let ranges = linear.ranges();
    LhistBucket {
        min: (bucket > 0).then(|| linear.start_of(bucket - 1)),
        max: (bucket <= ranges).then(|| linear.start_of(bucket).wrapping_sub(1)),
        count,
    }
}

/// One line for a value, or one line for each bucket, as bpftrace prints them; no line end behind the last.
///
/// The operand is escaped: in a nested run, the inner hyprobe chooses it.
impl fmt::Display for AggregateResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum { of, value, .. } => write!(f, "sum({}): {value}", of.escape_debug()),
            Self::Min { of, value, .. } => write_value(f, "min", of, *value),
            Self::Max { of, value, .. } => write_value(f, "max", of, *value),
            Self::Hist { of, buckets, .. } => {
                write!(f, "hist({}):", of.escape_debug())?;
                let rows = buckets.iter().map(|bucket| {
                    let HistBucket { min, max, count } = *bucket;
                    let text = if min == max {
                        format!("[{}]", short(min.into()))
                    } else {
                        range(min.into(), max.into())
                    };
                    (text, count)
                });
                write_rows(f, rows)
            }
            Self::Lhist { of, buckets, .. } => {
                write!(f, "lhist({}):", of.escape_debug())?;
                let rows = buckets.iter().map(|bucket| {
                    let text = match (bucket.min, bucket.max) {
                        (Some(min), Some(max)) => range(min.into(), max.into()),
                        (Some(min), None) => format!("[{}, ...)", short(min.into())),
                        (None, Some(max)) => format!("(..., {})", short(i128::from(max) + 1)),
                        (None, None) => "(...)".to_owned(),
                    };
                    (text, bucket.count)
                });
                write_rows(f, rows)
            }
        }
    }
}

fn write_value(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    of: &str,
    value: Option<i64>,
) -> fmt::Result {
    let of = of.escape_debug();
    match value {
        Some(value) => write!(f, "{name}({of}): {value}"),
        None => write!(f, "{name}({of}): no value"),
    }
}

/// Characters of the longest bar.
const BAR_WIDTH: u64 = 52;

fn write_rows(
    f: &mut fmt::Formatter<'_>,
    rows: impl Iterator<Item = (String, u64)> + Clone,
) -> fmt::Result {
    let most = rows
        .clone()
        .map(|(_, count)| count)
        .max()
        .unwrap_or(0)
        .max(1);
    for (label, count) in rows {
        let filled = u128::from(count) * u128::from(BAR_WIDTH) / u128::from(most);
        let bar: String = (0..u128::from(BAR_WIDTH))
            .map(|at| if at < filled { '@' } else { ' ' })
            .collect();
        write!(f, "\n{label:<16} {count:>8} |{bar}|")?;
    }
    Ok(())
}

/// A range, printed as its two ends.
fn range(min: i128, max: i128) -> String {
    format!("[{}, {})", short(min), short(max + 1))
}

/// A number, with a suffix of 1024 for a multiple.
fn short(number: i128) -> String {
    let suffixes = [
        (60, 'E'),
        (50, 'P'),
        (40, 'T'),
        (30, 'G'),
        (20, 'M'),
        (10, 'K'),
    ];
    let fitting = suffixes
        .into_iter()
        .find(|(bits, _)| number != 0 && number % (1 << bits) == 0);
    match fitting {
        Some((bits, suffix)) => format!("{}{suffix}", number >> bits),
        None => number.to_string(),
    }
}
