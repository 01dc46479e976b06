//! Pieces of a specification's text, with their positions: names and numbers.

use std::ops::Range;

use address::Gva;

use super::{SpecError, SpecProblem};

/// A piece of the text, with its position.
#[derive(Clone, Copy)]
pub(super) struct Piece<'t> {
    pub(super) text: &'t str,
    pub(super) start: usize,
}

impl<'t> Piece<'t> {
    pub(super) fn span(self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }

    /// Splits the piece at the first `separator`.
    pub(super) fn split(self, separator: char) -> Option<(Self, Self)> {
        let (before, behind) = self.text.split_once(separator)?;
        let start = self.start + before.len() + separator.len_utf8();
        Some((
            Self {
                text: before,
                ..self
            },
            Self {
                text: behind,
                start,
            },
        ))
    }

    /// Splits the piece at the last `separator`.
    pub(super) fn split_last(self, separator: char) -> Option<(Self, Self)> {
        let (before, behind) = self.text.rsplit_once(separator)?;
        let start = self.start + before.len() + separator.len_utf8();
        Some((
            Self {
                text: before,
                ..self
            },
            Self {
                text: behind,
                start,
            },
        ))
    }

    pub(super) fn is(self, problem: SpecProblem) -> SpecError {
        SpecError {
            problem,
            span: self.span(),
        }
    }
}

pub(super) fn parse_address(number: Piece<'_>) -> Result<Gva, SpecError> {
    hexadecimal(number.text)
        .map(Gva)
        .ok_or_else(|| number.is(SpecProblem::BadAddress(number.text.to_owned())))
}

pub(super) fn parse_offset(number: Piece<'_>) -> Result<u64, SpecError> {
    let decimal = || {
        let digits = number.text;
        // `u64::from_str` would accept a sign.
        digits
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| digits.parse().ok())
            .flatten()
    };
    hexadecimal(number.text)
        .or_else(decimal)
        .ok_or_else(|| number.is(SpecProblem::BadOffset(number.text.to_owned())))
}

fn hexadecimal(number: &str) -> Option<u64> {
    let digits = number
        .strip_prefix("0x")
        .or_else(|| number.strip_prefix("0X"))?;
    // `from_str_radix` would accept a sign.
    let fits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    fits.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// Checks for characters of C's identifiers, and the dots and dollars of compilers in the names of clones.
pub(super) fn check_characters(name: Piece<'_>, is_pattern: bool) -> Result<(), SpecError> {
    check(name, |c| {
        c.is_ascii_alphanumeric() || "_.$".contains(c) || (is_pattern && "*?[]!^-".contains(c))
    })
}

pub(super) fn check(name: Piece<'_>, fits: impl Fn(char) -> bool) -> Result<(), SpecError> {
    match name.text.char_indices().find(|&(_, c)| !fits(c)) {
        None => Ok(()),
        Some((at, c)) => {
            let start = name.start + at;
            let span = start..start + c.len_utf8();
            Err(SpecError {
                problem: SpecProblem::BadCharacter(c),
                span,
            })
        }
    }
}
