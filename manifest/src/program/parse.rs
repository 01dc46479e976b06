//! Parses programs.
//!
//! ```text
//! filter    = condition { "&&" condition }
//! condition = [ "(" type ")" ] value comparison number | "comm" ( "==" | "!=" ) name
//! name      = '"' characters '"'
//! value     = operand | "(" operand "&" number ")"
//! aggregate = name "(" operand { "," number } ")"
//! ```

use std::ops::Range;

use super::error::{A_NAME, AGGREGATES};
use super::token::{Token, Tokens};
use super::{
    Aggregate, Argument, Comparison, Condition, Filter, Linear, NameCondition, Operand,
    ProgramError, ProgramProblem, Register, TaskName, TaskNumber, ValueCondition,
};

/// bpftrace's name for the name of a task.
const COMM: &str = "comm";
/// bpftrace's name for the return value of a function.
const RETVAL: &str = "retval";

pub(super) fn filter(text: &str) -> Result<Filter, ProgramError> {
    let mut tokens = Tokens::new(text);
    let mut conditions = Vec::new();
    loop {
        let first = tokens.peek()?;
        let condition = condition(&mut tokens)?;
        if conditions.len() == Filter::MAX_CONDITIONS {
            return Err(first.is(ProgramProblem::TooManyConditions));
        }
        conditions.push(condition);
        let next = tokens.next()?;
        match next.text {
            "" => return Ok(Filter::checked(conditions)),
            "&&" => (),
            _ => return Err(next.is_not("`&&`")),
        }
    }
}

fn condition(tokens: &mut Tokens<'_>) -> Result<Condition, ProgramError> {
    match tokens.take(COMM)? {
        true => name_condition(tokens).map(Condition::Name),
        false => value_condition(tokens).map(Condition::Value),
    }
}

fn name_condition(tokens: &mut Tokens<'_>) -> Result<NameCondition, ProgramError> {
    let sign = tokens.next()?;
    let is_equal = match comparison(sign)? {
        Comparison::Eq => true,
        Comparison::Ne => false,
        _ => return Err(sign.is(ProgramProblem::NameOrder(sign.text.to_owned()))),
    };
    let quoted = tokens.next()?;
    let Some(text) = quoted.quoted() else {
        return Err(quoted.is_not(A_NAME));
    };
    let name =
        TaskName::new(text).ok_or_else(|| quoted.is(ProgramProblem::BadName(text.to_owned())))?;
    Ok(NameCondition { name, is_equal })
}

fn value_condition(tokens: &mut Tokens<'_>) -> Result<ValueCondition, ProgramError> {
    let is_signed = cast(tokens)?;
    let (operand, mask) = value(tokens)?;
    let sign = tokens.next()?;
    let comparison = comparison(sign)?;
    let comparison = if is_signed {
        comparison.signed()
    } else {
        comparison
    };
    let number = number(tokens)?;
    let has_order = !matches!(comparison, Comparison::Eq | Comparison::Ne);
    if number.is_negative && has_order && !is_signed {
        return Err(ProgramError {
            problem: ProgramProblem::NegativeUnsigned(number.value.cast_signed().to_string()),
            span: number.span,
        });
    }
    Ok(ValueCondition {
        operand,
        mask,
        comparison,
        value: number.value,
    })
}

/// Reads a cast, if any. Returns whether the comparison is signed.
fn cast(tokens: &mut Tokens<'_>) -> Result<bool, ProgramError> {
    let mut ahead = *tokens;
    if !ahead.take("(")? {
        return Ok(false);
    }
    let name = ahead.next()?;
    if !ahead.take(")")? || operand(name).is_ok() {
        return Ok(false);
    }
    *tokens = ahead;
    match name.text {
        "int64" => Ok(true),
        "uint64" => Ok(false),
        _ if name.is_word() => Err(name.is(ProgramProblem::UnknownType(name.text.to_owned()))),
        _ => Err(name.is_not("a type")),
    }
}

/// Reads an operand of a filter, which is evaluated before the function runs.
fn compared(name: Token<'_>) -> Result<Operand, ProgramError> {
    match name.text {
        RETVAL => Err(name.is(ProgramProblem::NotReturnedYet)),
        _ => operand(name),
    }
}

fn value(tokens: &mut Tokens<'_>) -> Result<(Operand, Option<u64>), ProgramError> {
    if !tokens.take("(")? {
        return Ok((compared(tokens.next()?)?, None));
    }
    let operand = compared(tokens.next()?)?;
    tokens.expect("&", "`&`")?;
    let mask = number(tokens)?.value;
    tokens.expect(")", "`)`")?;
    Ok((operand, Some(mask)))
}

fn operand(name: Token<'_>) -> Result<Operand, ProgramError> {
    if !name.is_word() {
        return Err(name.is_not("an operand"));
    }
    match name.text {
        "curtask" => return Ok(Operand::CurrentTask),
        "cpu" => return Ok(Operand::Cpu),
        RETVAL => return Ok(Operand::Register(Register::Rax)),
        _ => (),
    }
    if let Some(number) = TaskNumber::ALL.iter().find(|it| it.name() == name.text) {
        return Ok(Operand::Task(*number));
    }
    if let Some(register) = Register::ALL.iter().find(|known| known.name() == name.text) {
        return Ok(Operand::Register(*register));
    }
    let digits = name
        .text
        .strip_prefix("arg")
        .filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()));
    Err(name.is(match digits {
        Some(digits) => match digits.parse().ok().and_then(Argument::new) {
            Some(argument) => return Ok(Operand::Argument(argument)),
            None => ProgramProblem::ArgumentOnStack(name.text.to_owned()),
        },
        None => ProgramProblem::UnknownOperand(name.text.to_owned()),
    }))
}

fn comparison(sign: Token<'_>) -> Result<Comparison, ProgramError> {
    Ok(match sign.text {
        "==" => Comparison::Eq,
        "!=" => Comparison::Ne,
        "<" => Comparison::Below,
        "<=" => Comparison::BelowOrEqual,
        ">" => Comparison::Above,
        ">=" => Comparison::AboveOrEqual,
        _ => return Err(sign.is_not("a comparison")),
    })
}

struct Number {
    /// The two's complement, for a negative number.
    value: u64,
    is_negative: bool,
    span: Range<usize>,
}

impl Number {
    fn signed(&self) -> Option<i64> {
        let value = self.value.cast_signed();
        (self.is_negative == (value < 0)).then_some(value)
    }
}

fn number(tokens: &mut Tokens<'_>) -> Result<Number, ProgramError> {
    let first = tokens.next()?;
    let minus = (first.text == "-").then_some(first);
    let digits = if minus.is_some() {
        tokens.next()?
    } else {
        first
    };
    if !digits.is_number() {
        return Err(digits.is_not("a number"));
    }
    let span = first.span_to(digits);
    let value = unsigned(digits.text).and_then(|value| match minus {
        None => Some(value),
        // The least number is `i64::MIN`.
        Some(_) => (value <= i64::MIN.unsigned_abs()).then(|| value.wrapping_neg()),
    });
    match value {
        Some(value) => Ok(Number {
            value,
            is_negative: minus.is_some() && value != 0,
            span,
        }),
        None => {
            let sign = minus.map_or("", |minus| minus.text);
            let written = format!("{sign}{}", digits.text);
            Err(ProgramError {
                problem: ProgramProblem::BadNumber(written),
                span,
            })
        }
    }
}

fn unsigned(digits: &str) -> Option<u64> {
    let hexadecimal = digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"));
    match hexadecimal {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    }
}

pub(super) fn aggregate(text: &str) -> Result<Aggregate, ProgramError> {
    let mut tokens = Tokens::new(text);
    let name = tokens.next()?;
    if !name.is_word() {
        return Err(name.is_not("an aggregate"));
    }
    if !AGGREGATES.contains(&name.text) {
        return Err(name.is(ProgramProblem::UnknownAggregate(name.text.to_owned())));
    }
    tokens.expect("(", "`(`")?;
    let of = operand(tokens.next()?)?;
    let aggregate = match name.text {
        "sum" => Aggregate::Sum(of),
        "min" => Aggregate::Min(of),
        "max" => Aggregate::Max(of),
        "hist" => Aggregate::Hist(of),
        _ => {
            let linear = linear(&mut tokens)?;
            Aggregate::Lhist { of, linear }
        }
    };
    tokens.expect(")", "`)`")?;
    let rest = tokens.next()?;
    if rest.text.is_empty() {
        Ok(aggregate)
    } else {
        Err(rest.is_not("the end"))
    }
}

fn linear(tokens: &mut Tokens<'_>) -> Result<Linear, ProgramError> {
    let mut parameter = || {
        tokens.expect(",", "`,`")?;
        number(tokens)
    };
    let (min, max, step) = (parameter()?, parameter()?, parameter()?);
    let span = min.span.start..step.span.end;
    let signed = |number: &Number| {
        number.signed().ok_or_else(|| ProgramError {
            problem: ProgramProblem::NotSigned(number.value),
            span: number.span.clone(),
        })
    };
    let (first, last) = (signed(&min)?, signed(&max)?);
    let step = if step.is_negative { 0 } else { step.value };
    Linear::new(first, last, step).map_err(|error| ProgramError {
        problem: error.into(),
        span,
    })
}
