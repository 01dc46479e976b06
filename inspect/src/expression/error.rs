//! Mistakes in expressions.

use std::fmt;

use address::Gva;
use thiserror::Error;

/// A part of an expression's text, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The end, behind the last byte.
    pub end: usize,
}

impl Span {
    /// From the beginning of `self` to the end of `last`.
    #[must_use]
    pub fn to(self, last: Self) -> Self {
        Self {
            start: self.start,
            end: last.end,
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}", self.start)
    }
}

/// Why a text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// A longer text is no expression.
    #[error("an expression has at most {most} bytes")]
    TooLong {
        /// The limit.
        most: usize,
    },
    /// Too many operators and groups.
    #[error("the expression has more than {most} operators and groups; the next is at {at}")]
    TooMany {
        /// The limit.
        most: usize,
        /// The operator.
        at: Span,
    },
    /// A character of no token.
    #[error("`{character}` is not part of an expression at {at}")]
    Character {
        /// The character.
        character: char,
        /// The place.
        at: Span,
    },
    /// A number beyond 64 bits, with letters, or with a zero in front.
    #[error("`{text}` is not a number of 64 bits at {at}")]
    Number {
        /// The text.
        text: String,
        /// The place.
        at: Span,
    },
    /// Another token than the expected one.
    #[error("{found} is not {expected} at {at}")]
    Unexpected {
        /// The token, or the end.
        found: String,
        /// The expected tokens.
        expected: &'static str,
        /// The place.
        at: Span,
    },
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EvaluateError {
    /// The kernel has no types.
    #[error("the kernel has no type information (BTF), so that expressions have no types")]
    NoTypes,
    /// The kernel has no symbol of the name.
    #[error("the kernel has no variable or function `{name}`")]
    NoSymbol {
        /// The name.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// The kernel has no type of the name.
    #[error("the kernel has no type `{name}`")]
    NoType {
        /// The name with its keyword.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// BTF does not have the types of most variables.
    #[error(
        "the type of the variable `{name}` is not in the kernel's BTF, which has few variables"
    )]
    Untyped {
        /// The variable.
        name: String,
    },
    /// `void` has no values.
    #[error("`{text}` is of type `void`, which has no value")]
    Void {
        /// The expression's text.
        text: String,
    },
    /// A cast to a struct or an array.
    #[error("a cast makes a number of at most 64 bits or a pointer, and `{declared}` is neither")]
    Cast {
        /// The type.
        declared: String,
    },
    /// Static variables of several files, or static functions.
    #[error("the kernel has several variables or functions `{name}`: at {}", list(.addresses))]
    Ambiguous {
        /// The name.
        name: String,
        /// The first running addresses.
        addresses: Vec<Gva>,
    },
    /// A per-CPU variable without its processor, or the other way round.
    #[error("`{name}` is a per-CPU variable: each processor has its own")]
    PerCpu {
        /// The variable.
        name: String,
    },
    /// The variable exists once.
    #[error("`{name}` is not a per-CPU variable")]
    NotPerCpu {
        /// The variable.
        name: String,
    },
    /// The machine has fewer processors.
    #[error("there is no processor {cpu}: the kernel has {count}")]
    NoProcessor {
        /// The processor's number.
        cpu: u64,
        /// The number of processors.
        count: u64,
    },
    /// The struct has no such member.
    #[error("`{holder}` has no member `{name}`")]
    NoMember {
        /// The struct's type.
        holder: String,
        /// The member.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// The operator is for another kind of type.
    #[error("`{operator}` is for {wanted}, and `{text}` is of type `{found}`")]
    WrongType {
        /// The operator.
        operator: &'static str,
        /// The kind of type.
        wanted: &'static str,
        /// The operand's text.
        text: String,
        /// The operand's type.
        found: String,
    },
    /// The size of an array's elements is unknown.
    #[error("the elements of `{text}` have no size")]
    NoSize {
        /// The array's text.
        text: String,
    },
    /// The address is in no memory.
    #[error("cannot read `{text}` at {at}: no memory is there")]
    Fault {
        /// The expression's text.
        text: String,
        /// The address.
        at: Gva,
    },
    /// An object that has no address.
    #[error("`{text}` has no address: it is a bit field or a number")]
    NoAddress {
        /// The expression's text.
        text: String,
    },
}

fn list(addresses: &[Gva]) -> String {
    let addresses: Vec<String> = addresses.iter().map(Gva::to_string).collect();
    addresses.join(", ")
}

impl EvaluateError {
    /// Advice on how to correct the mistake.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Self::NoSymbol { near, .. }
            | Self::NoType { near, .. }
            | Self::NoMember { near, .. } => {
                (!near.is_empty()).then(|| format!("near names: {}", near.join(", ")))
            }
            Self::Untyped { name } => Some(format!(
                "give the type: `*(struct TYPE *)&{name}`, or `-t 'struct TYPE' {name}` on the command line"
            )),
            Self::Void { .. } => {
                Some("cast to a pointer to another type: `*(struct TYPE *)…`".to_owned())
            }
            Self::Ambiguous { .. } => {
                Some("give the address of one in place of the name".to_owned())
            }
            Self::PerCpu { name } => Some(format!("say which processor's: `per_cpu({name}, 0)`")),
            Self::NotPerCpu { name } => Some(format!("`{name}` alone is the variable")),
            _ => None,
        }
    }
}
