//! The tokens of a program's text.

use std::ops::Range;

use super::{ProgramError, ProgramProblem};

/// A piece of the text, with its position. Empty at the end of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'t> {
    pub(super) text: &'t str,
    start: usize,
}

/// The signs, the longer signs first.
const SIGNS: [&str; 15] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "=", "&", "|", "(", ")", ",", "-",
];

impl Token<'_> {
    pub(super) fn span(self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }

    pub(super) fn is(self, problem: ProgramProblem) -> ProgramError {
        ProgramError {
            problem,
            span: self.span(),
        }
    }

    /// The error for a token other than the expected element.
    pub(super) fn is_not(self, expected: &'static str) -> ProgramError {
        self.is(if self.text.is_empty() {
            ProgramProblem::Ends(expected)
        } else {
            let found = self.text.to_owned();
            ProgramProblem::Unexpected { expected, found }
        })
    }

    pub(super) fn is_word(self) -> bool {
        self.text
            .starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
    }

    pub(super) fn is_number(self) -> bool {
        self.text.starts_with(|first: char| first.is_ascii_digit())
    }

    /// The text between the quotation marks of a quoted name.
    pub(super) fn quoted(&self) -> Option<&str> {
        self.text.strip_prefix('"')?.strip_suffix('"')
    }

    /// The range from the beginning of the token to the end of `other`.
    pub(super) fn span_to(self, other: Token<'_>) -> Range<usize> {
        self.start..other.span().end
    }
}

/// Reads tokens one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Tokens<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    /// The next token, without taking it.
    pub(super) fn peek(&self) -> Result<Token<'t>, ProgramError> {
        Self { ..*self }.next()
    }

    pub(super) fn next(&mut self) -> Result<Token<'t>, ProgramError> {
        let rest = &self.text[self.at..];
        let rest = rest.trim_start();
        let start = self.text.len() - rest.len();
        let is_in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let len = match rest.chars().next() {
            None => 0,
            Some('"') => match rest[1..].find('"') {
                Some(end) => end + 2,
                None => {
                    return Err(ProgramError {
                        problem: ProgramProblem::Ends("a quotation mark"),
                        span: self.text.len()..self.text.len(),
                    });
                }
            },
            Some(first) if is_in_word(first) => {
                rest.find(|c: char| !is_in_word(c)).unwrap_or(rest.len())
            }
            Some(first) => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => sign.len(),
                None => {
                    return Err(ProgramError {
                        problem: ProgramProblem::BadCharacter(first),
                        span: start..start + first.len_utf8(),
                    });
                }
            },
        };
        self.at = start + len;
        Ok(Token {
            text: &rest[..len],
            start,
        })
    }

    /// Takes the next token, which must be `sign`; `what` names the sign in the error.
    pub(super) fn expect(
        &mut self,
        sign: &str,
        what: &'static str,
    ) -> Result<Token<'t>, ProgramError> {
        let token = self.next()?;
        if token.text == sign {
            Ok(token)
        } else {
            Err(token.is_not(what))
        }
    }

    /// Whether the next token is `sign`; if so, takes the token.
    pub(super) fn take(&mut self, sign: &str) -> Result<bool, ProgramError> {
        let is_there = self.peek()?.text == sign;
        if is_there {
            self.next()?;
        }
        Ok(is_there)
    }
}
