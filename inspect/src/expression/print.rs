//! The value of an expression, as commands and answers show it.

use address::Gva;
use thiserror::Error;

use super::error::{EvaluateError, ParseError};
use super::evaluate::Place;
use super::tree::{Expression, TypeName};
use crate::value::Limits;
use crate::view::KernelView;

/// Why an expression cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PrintError {
    /// The text is no expression, or no type.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The expression has no value.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
}

/// The value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Printed {
    /// The type in C.
    pub declared: String,
    /// The address of the value; `None` for a number.
    pub address: Option<Gva>,
    /// The value as a C initializer.
    pub text: String,
    /// The value in JSON.
    pub value: serde_json::Value,
}

impl Printed {
    /// Evaluates `expression` in the kernel of `view`; if `declared` is a type, as the object of this type at the address. `depth` is the most
    /// structs in each other.
    ///
    /// # Errors
    ///
    /// See [`PrintError`].
    pub fn evaluate(
        view: &KernelView<'_>,
        expression: &str,
        declared: Option<&str>,
        depth: Option<usize>,
    ) -> Result<Self, PrintError> {
        let defaults = Limits::default();
        let limits = Limits {
            depth: depth.unwrap_or(defaults.depth),
            ..defaults
        };
        let expression = Expression::parse(expression)?;
        let object = match declared {
            None => expression.evaluate(view)?,
            Some(declared) => expression.evaluate_as(view, &TypeName::parse(declared)?)?,
        };
        let value = object.value(limits);
        Ok(Self {
            declared: object.declared(),
            address: match object.place() {
                Place::Memory(at) | Place::Bits(at, _) => Some(at),
                Place::Word(_) => None,
            },
            text: value.to_string(),
            value: value.to_json(),
        })
    }
}
