//! Errors in the text of a program, with their positions.

use std::ops::Range;

use thiserror::Error;

use super::{Filter, LinearError, Operand};
use crate::suggest::did_you_mean;

/// The error in an invalid program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct ProgramError {
    /// The problem.
    pub problem: ProgramProblem,
    /// The bytes of the text with the problem.
    pub span: Range<usize>,
}

/// The problem with a program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProgramProblem {
    /// The text ends too early.
    #[error("it ends where {0} is expected")]
    Ends(&'static str),
    /// The text has another word or sign.
    #[error("`{found}` is not {expected}")]
    Unexpected {
        /// The expected element.
        expected: &'static str,
        /// The element found.
        found: String,
    },
    /// A character that is invalid in programs.
    #[error("`{0}` means nothing here")]
    BadCharacter(char),
    /// An invalid number, or a number that does not fit 64 bits.
    #[error("`{0}` is not a number of 64 bits")]
    BadNumber(String),
    /// A number too large for a signed comparison.
    #[error("`{0}` is not a number of 64 bits with a sign")]
    NotSigned(u64),
    /// The return value, in a filter.
    #[error("a filter decides when the function is entered, and nothing has been returned yet")]
    NotReturnedYet,
    /// An unknown operand.
    #[error("there is no operand `{0}`")]
    UnknownOperand(String),
    /// An argument that is passed on the stack.
    #[error("`{0}` is not in a register: only arg0 to arg5 are")]
    ArgumentOnStack(String),
    /// A text that is the name of no task, of more than [`MAX_BYTES`](super::TaskName::MAX_BYTES) bytes or of other characters.
    #[error("`{0}` is not a name to compare with: 1 to 15 printable characters of ASCII")]
    BadName(String),
    /// An order of names.
    #[error("`{0}` does not compare names: `==` and `!=` do")]
    NameOrder(String),
    /// An unknown type in a cast.
    #[error("`{0}` is not a type that values can be compared as")]
    UnknownType(String),
    /// A negative number in an unsigned comparison.
    #[error("`{0}` is negative, and the comparison is without a sign")]
    NegativeUnsigned(String),
    /// A filter with too many conditions.
    #[error("a filter has at most {} conditions", Filter::MAX_CONDITIONS)]
    TooManyConditions,
    /// An unknown aggregate.
    #[error("there is no aggregate `{0}`")]
    UnknownAggregate(String),
    /// Invalid ranges of a linear histogram.
    #[error(transparent)]
    Linear(#[from] LinearError),
}

/// What follows `comm ==`.
pub(super) const A_NAME: &str = "a name in quotation marks";
/// The names of the aggregates.
pub(super) const AGGREGATES: [&str; 5] = ["sum", "min", "max", "hist", "lhist"];

impl ProgramError {
    /// The right notation, if known.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match &self.problem {
            ProgramProblem::Ends("an operand") => {
                Some("write a condition, like arg0 == 5".to_owned())
            }
            ProgramProblem::Ends("an aggregate") => {
                Some("write one, like sum(arg2) or hist(arg2)".to_owned())
            }
            ProgramProblem::Ends(A_NAME)
            | ProgramProblem::Unexpected {
                expected: A_NAME, ..
            } => Some("write comm == \"bash\"".to_owned()),
            ProgramProblem::Unexpected { found, .. } => match found.as_str() {
                "=" => Some("equality is written ==".to_owned()),
                "&" => Some("some bits of an operand are written (arg2 & 0xff)".to_owned()),
                "||" | "|" => {
                    Some("all conditions have to hold: write a probe for each".to_owned())
                }
                _ => None,
            },
            ProgramProblem::UnknownOperand(word) if word == "comm" => {
                Some("a filter compares it by itself: comm == \"bash\"".to_owned())
            }
            ProgramProblem::UnknownOperand(word) => {
                let names: Vec<_> = Operand::all().map(|operand| operand.to_string()).collect();
                let there_are = "there are arg0 to arg5, uid, pid, tid, curtask, cpu and the registers, and comm in filters";
                Some(match did_you_mean(word, names.iter().map(String::as_str)) {
                    Some(name) => format!("did you mean `{name}`? {there_are}"),
                    None => there_are.to_owned(),
                })
            }
            ProgramProblem::UnknownType(_) => {
                Some("int64 compares with a sign, uint64 without".to_owned())
            }
            ProgramProblem::NegativeUnsigned(number) => {
                Some(format!("write (int64)arg0 < {number}"))
            }
            ProgramProblem::UnknownAggregate(word) if word == "count" => {
                Some("hits are counted by action = \"count\"".to_owned())
            }
            ProgramProblem::UnknownAggregate(word) => {
                let there_are = format!("there are {}", AGGREGATES.join(", "));
                Some(match did_you_mean(word, AGGREGATES) {
                    Some(name) => format!("did you mean `{name}`? {there_are}"),
                    None => there_are,
                })
            }
            ProgramProblem::Ends(_)
            | ProgramProblem::BadCharacter(_)
            | ProgramProblem::BadNumber(_)
            | ProgramProblem::BadName(_)
            | ProgramProblem::NameOrder(_)
            | ProgramProblem::NotSigned(_)
            | ProgramProblem::NotReturnedYet
            | ProgramProblem::ArgumentOnStack(_)
            | ProgramProblem::TooManyConditions
            | ProgramProblem::Linear(_) => None,
        }
    }
}
