//! Filters: conditions that decide whether an execution is a hit.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Operand, ProgramError, TaskName, Values, parse};

/// A comparison of two 64-bit values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`, unsigned.
    Below,
    /// `<=`, unsigned.
    BelowOrEqual,
    /// `>`, unsigned.
    Above,
    /// `>=`, unsigned.
    AboveOrEqual,
    /// `<`, signed.
    Less,
    /// `<=`, signed.
    LessOrEqual,
    /// `>`, signed.
    Greater,
    /// `>=`, signed.
    GreaterOrEqual,
}

impl Comparison {
    /// Whether the comparison of `left` with `right` holds.
    #[must_use]
    pub const fn holds(self, left: u64, right: u64) -> bool {
        let (left_signed, right_signed) = (left.cast_signed(), right.cast_signed());
        match self {
            Self::Eq => left == right,
            Self::Ne => left != right,
            Self::Below => left < right,
            Self::BelowOrEqual => left <= right,
            Self::Above => left > right,
            Self::AboveOrEqual => left >= right,
            Self::Less => left_signed < right_signed,
            Self::LessOrEqual => left_signed <= right_signed,
            Self::Greater => left_signed > right_signed,
            Self::GreaterOrEqual => left_signed >= right_signed,
        }
    }

    /// Whether the comparison treats the values as signed numbers.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(
            self,
            Self::Less | Self::LessOrEqual | Self::Greater | Self::GreaterOrEqual
        )
    }

    /// The signed form of the comparison. Equality has no sign.
    #[must_use]
    pub(super) const fn signed(self) -> Self {
        match self {
            Self::Below => Self::Less,
            Self::BelowOrEqual => Self::LessOrEqual,
            Self::Above => Self::Greater,
            Self::AboveOrEqual => Self::GreaterOrEqual,
            other => other,
        }
    }

    const fn sign(self) -> &'static str {
        match self {
            Self::Eq => "==",
            Self::Ne => "!=",
            Self::Below | Self::Less => "<",
            Self::BelowOrEqual | Self::LessOrEqual => "<=",
            Self::Above | Self::Greater => ">",
            Self::AboveOrEqual | Self::GreaterOrEqual => ">=",
        }
    }
}

/// A comparison of an operand, or of some of its bits, with a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueCondition {
    /// The operand.
    pub operand: Operand,
    /// The mask applied to the operand; all bits without a mask.
    pub mask: Option<u64>,
    /// The comparison.
    pub comparison: Comparison,
    /// The constant.
    pub value: u64,
}

impl ValueCondition {
    fn holds(&self, values: &mut impl Values) -> Option<bool> {
        let value = values.value(self.operand)? & self.mask.unwrap_or(u64::MAX);
        Some(self.comparison.holds(value, self.value))
    }
}

/// A number printed in decimal below 0x1000, as a likely count, and in hexadecimal otherwise, as a likely address.
struct Number(u64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0x1000 {
            write!(f, "{}", self.0)
        } else {
            write!(f, "{:#x}", self.0)
        }
    }
}

impl fmt::Display for ValueCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.comparison.is_signed() {
            f.write_str("(int64)")?;
        }
        match self.mask {
            Some(mask) => write!(f, "({} & {mask:#x})", self.operand)?,
            None => write!(f, "{}", self.operand)?,
        }
        write!(f, " {} ", self.comparison.sign())?;
        if self.comparison.is_signed() {
            write!(f, "{}", self.value.cast_signed())
        } else {
            write!(f, "{}", Number(self.value))
        }
    }
}

/// A comparison of the name of the task that the processor runs with a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameCondition {
    /// The name.
    pub name: TaskName,
    /// Whether the task has the name, or another.
    pub is_equal: bool,
}

impl fmt::Display for NameCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_equal { "==" } else { "!=" };
        write!(f, "comm {sign} \"{}\"", self.name)
    }
}

/// A condition of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// On a value of 64 bits.
    Value(ValueCondition),
    /// On the name of the task.
    Name(NameCondition),
}

impl Condition {
    /// Whether the condition holds; `None` if what it compares is unknown.
    pub fn holds(&self, values: &mut impl Values) -> Option<bool> {
        match self {
            Self::Value(condition) => condition.holds(values),
            Self::Name(condition) => Some(condition.name.is(values.name()?) == condition.is_equal),
        }
    }

    /// The operand that is compared; `None` for the name of a task.
    #[must_use]
    pub const fn operand(&self) -> Option<Operand> {
        match self {
            Self::Value(condition) => Some(condition.operand),
            Self::Name(_) => None,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(condition) => condition.fmt(f),
            Self::Name(condition) => condition.fmt(f),
        }
    }
}

/// Conditions that must all hold for a hit; from one to [`Filter::MAX_CONDITIONS`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter(Vec<Condition>);

/// The reason why conditions are not a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// There is no condition.
    #[error("a filter has at least one condition")]
    Empty,
    /// There are too many conditions.
    #[error("a filter has at most {} conditions", Filter::MAX_CONDITIONS)]
    TooMany,
}

impl Filter {
    /// The maximum number of conditions.
    pub const MAX_CONDITIONS: usize = 8;

    /// The filter that accepts a hit if all `conditions` hold.
    ///
    /// # Errors
    ///
    /// If there is no condition, or there are too many.
    pub fn new(conditions: impl Into<Vec<Condition>>) -> Result<Self, FilterError> {
        let conditions = conditions.into();
        match conditions.len() {
            0 => Err(FilterError::Empty),
            1..=Self::MAX_CONDITIONS => Ok(Self(conditions)),
            _ => Err(FilterError::TooMany),
        }
    }

    /// Same as [`new`](Self::new), for conditions already counted.
    pub(super) fn checked(conditions: Vec<Condition>) -> Self {
        debug_assert!((1..=Self::MAX_CONDITIONS).contains(&conditions.len()));
        Self(conditions)
    }

    /// The conditions, in the order of evaluation.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.0
    }

    /// Whether all conditions hold; `None` if a value is unknown and no condition fails. The evaluation ends at the first condition that fails.
    pub fn holds(&self, values: &mut impl Values) -> Option<bool> {
        let mut all = Some(true);
        for condition in &self.0 {
            match condition.holds(values) {
                Some(true) => (),
                Some(false) => return Some(false),
                None => all = None,
            }
        }
        all
    }
}

impl FromStr for Filter {
    type Err = ProgramError;

    fn from_str(text: &str) -> Result<Self, ProgramError> {
        parse::filter(text)
    }
}

/// Prints the text that parses to the same filter.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, condition) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(" && ")?;
            }
            condition.fmt(f)?;
        }
        Ok(())
    }
}

impl Serialize for Filter {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}
