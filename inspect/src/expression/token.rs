//! The tokens of an expression.

use super::error::{ParseError, Span};

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A name or a keyword.
    Name(String),
    /// A number.
    Number(u64),
    /// `(`, `)`, `[`, `]`, `.`, `->`, `*`, `&` or `,`.
    Mark(&'static str),
    /// The end of the text.
    End,
}

impl Token {
    /// The token in the text of an error.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Name(name) => format!("`{name}`"),
            Self::Number(number) => format!("`{number}`"),
            Self::Mark(mark) => format!("`{mark}`"),
            Self::End => "the end".to_owned(),
        }
    }
}

/// The longer mark comes first.
const MARKS: [&str; 9] = ["->", "(", ")", "[", "]", ".", "*", "&", ","];

/// Cuts `text` into tokens, with [`Token::End`] as the last.
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, Span)>, ParseError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let mark = MARKS.into_iter().find(|mark| rest.starts_with(mark));
        let len = match mark {
            Some(mark) => mark.len(),
            None => word.max(first.len_utf8()),
        };
        let span = Span {
            start: at,
            end: at + len,
        };
        at += len;
        tokens.push(match mark {
            Some(mark) => (Token::Mark(mark), span),
            None if first.is_whitespace() => continue,
            None if first.is_ascii_digit() => (Token::Number(number(&rest[..len], span)?), span),
            None if is_word(first) => (Token::Name(rest[..len].to_owned()), span),
            None => {
                let character = first;
                return Err(ParseError::Character {
                    character,
                    at: span,
                });
            }
        });
    }
    tokens.push((Token::End, Span { start: at, end: at }));
    Ok(tokens)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn number(text: &str, at: Span) -> Result<u64, ParseError> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        // In C, the number is octal.
        None if text.len() > 1 && text.starts_with('0') => None,
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| ParseError::Number {
        text: text.to_owned(),
        at,
    })
}
