//! Errors in a manifest.

use std::fmt;
use std::path::PathBuf;
use std::str::Utf8Error;

use files::ReadError;
use miette::{Diagnostic, LabeledSpan, NamedSource, SourceSpan};
use thiserror::Error;

use crate::SpecError;
use crate::program::ProgramError;
use crate::units::UnitError;

/// The reason why a manifest cannot be used.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The file could not be read.
    #[error("cannot read the manifest {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ReadError,
    },
    /// The file is not text.
    #[error("the manifest {path} is not UTF-8 text")]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first wrong byte.
        source: Utf8Error,
    },
    /// The text is not a valid manifest.
    #[error(transparent)]
    Invalid(#[from] InvalidManifest),
}

/// The maximum number of problems shown. Each is shown with its lines of the text.
const SHOWN: usize = 20;

/// The maximum number of bytes shown around a label.
const SHOWN_BYTES: usize = 2000;

fn to_second_line_end<'t>(bytes: impl Iterator<Item = &'t u8>) -> usize {
    let mut line_ends = 0;
    bytes
        .take_while(|byte| {
            line_ends += usize::from(**byte == b'\n');
            line_ends < 2
        })
        .take(SHOWN_BYTES + 1)
        .count()
}

/// The text of an invalid manifest, with the first problems.
#[derive(Debug, Error, Diagnostic)]
#[error("{} is not a valid manifest", text.name())]
pub struct InvalidManifest {
    #[source_code]
    text: NamedSource<String>,
    #[related]
    problems: Vec<Problem>,
    more: usize,
}

impl InvalidManifest {
    pub(super) fn new(name: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.span().offset());
        let more = problems.len().saturating_sub(SHOWN);
        problems.truncate(SHOWN);
        let text = NamedSource::new(name, text.to_owned()).with_language("toml");
        Self {
            text,
            problems,
            more,
        }
    }

    /// The first problems, in the order of the text.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The name of the text with the line and the column of `problem`: `run.toml:3:7`.
    #[must_use]
    pub fn place(&self, problem: &Problem) -> String {
        let text = self.text.inner();
        let before = text.get(..problem.span().offset()).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("{}:{line}:{column}", self.text.name())
    }

    /// Whether the lines of `problem`, and those before and behind them, are short enough to be shown.
    #[must_use]
    pub fn has_short_lines(&self, problem: &Problem) -> bool {
        let text = self.text.inner().as_bytes();
        let is_short = |label: LabeledSpan| {
            let (start, end) = (label.offset(), label.offset() + label.len());
            let before = text.get(..start).unwrap_or_default().iter().rev();
            let behind = text.get(end..).unwrap_or_default().iter();
            // Up to the end of the previous line, and of the next line.
            to_second_line_end(before) + label.len() + to_second_line_end(behind) <= SHOWN_BYTES
        };
        let mut labels = problem.labels().into_iter().flatten();
        labels.all(is_short)
    }

    /// The number of further problems, beyond [`problems`](Self::problems).
    #[must_use]
    pub fn more(&self) -> usize {
        self.more
    }
}

/// A problem.
#[derive(Debug, Error, Diagnostic)]
pub enum Problem {
    /// The text is not TOML.
    #[error("this is not TOML")]
    Syntax {
        /// The parser's message.
        message: String,
        /// The position.
        #[label("{message}")]
        span: SourceSpan,
    },
    /// A key that does not exist.
    #[error("{table} has no key `{key}`")]
    UnknownKey {
        /// The table with the key.
        table: &'static str,
        /// The key.
        key: String,
        /// The key.
        #[label("not known")]
        span: SourceSpan,
        /// The existing keys.
        #[help]
        help: Option<String>,
    },
    /// A value of the wrong type.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// The right type.
        expected: &'static str,
        /// The type found.
        found: &'static str,
        /// The value.
        #[label("{found}")]
        span: SourceSpan,
        /// The right notation.
        #[help]
        help: Option<String>,
    },
    /// A word that is not among the choices.
    #[error("`{key}` cannot be `{word}`")]
    NoChoice {
        /// The key.
        key: &'static str,
        /// The word.
        word: String,
        /// The word.
        #[label("none of the choices")]
        span: SourceSpan,
        /// The choices.
        #[help]
        help: Option<String>,
    },
    /// A number outside its range.
    #[error("`{key}` cannot be {number}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The number.
        number: String,
        /// The lowest.
        from: i64,
        /// The highest.
        to: i64,
        /// The number.
        #[label("must be from {from} to {to}")]
        span: SourceSpan,
    },
    /// A wrong size or time.
    #[error("`{key}` is not usable")]
    Unit {
        /// The key.
        key: &'static str,
        /// What is wrong.
        error: UnitError,
        /// The value.
        #[label("{error}")]
        span: SourceSpan,
    },
    /// A wrong probe specification.
    #[error("this is not a probe: {error}")]
    Spec {
        /// What is wrong.
        error: SpecError,
        /// The part of the probe with the error.
        #[label("here")]
        span: SourceSpan,
        /// What to write instead.
        #[help]
        help: Option<String>,
    },
    /// A wrong filter or aggregate.
    #[error("`{key}` is not usable: {error}")]
    Program {
        /// The key.
        key: &'static str,
        /// What is wrong.
        error: ProgramError,
        /// The part of the program with the error.
        #[label("here")]
        span: SourceSpan,
        /// What to write instead.
        #[help]
        help: Option<String>,
    },
    /// More entries than a manifest may have.
    #[error("there are {number} {what}")]
    TooMany {
        /// The kind of entry, in the plural.
        what: &'static str,
        /// Their maximum number.
        most: usize,
        /// Their number.
        number: usize,
        /// The first entry beyond the maximum.
        #[label("the maximum is {most}")]
        span: SourceSpan,
    },
    /// A missing key that the table requires.
    #[error("{table} needs the key `{key}`")]
    Missing {
        /// The table.
        table: &'static str,
        /// The key.
        key: &'static str,
        /// The table.
        #[label("`{key}` is missing")]
        span: SourceSpan,
    },
    /// An empty string instead of a name.
    #[error("`{key}` is empty")]
    Empty {
        /// The key.
        key: &'static str,
        /// The value.
        #[label("empty")]
        span: SourceSpan,
    },
    /// An invalid regular expression.
    #[error("`{key}` is not a regular expression")]
    Regex {
        /// The key.
        key: &'static str,
        /// The error.
        message: String,
        /// The value.
        #[label("{message}")]
        span: SourceSpan,
    },
    /// A table with contents that make no sense, or an incomplete table.
    #[error("{table} {what}")]
    Meaning {
        /// The table.
        table: &'static str,
        /// The problem.
        what: String,
        /// The position.
        #[label("here")]
        span: SourceSpan,
        /// A possible solution.
        #[help]
        help: Option<String>,
    },
    /// Two keys that exclude each other.
    #[error("`{first}` and `{second}` exclude each other")]
    Both {
        /// The first key.
        first: &'static str,
        /// The second key.
        second: &'static str,
        /// The first key.
        #[label("either this")]
        span: SourceSpan,
        /// The second key.
        #[label("or this")]
        other: SourceSpan,
    },
}

impl Problem {
    /// The position of the problem.
    #[must_use]
    pub fn span(&self) -> SourceSpan {
        match self {
            Self::Syntax { span, .. }
            | Self::UnknownKey { span, .. }
            | Self::WrongType { span, .. }
            | Self::NoChoice { span, .. }
            | Self::OutOfRange { span, .. }
            | Self::Unit { span, .. }
            | Self::Spec { span, .. }
            | Self::Program { span, .. }
            | Self::Missing { span, .. }
            | Self::Empty { span, .. }
            | Self::Regex { span, .. }
            | Self::TooMany { span, .. }
            | Self::Meaning { span, .. }
            | Self::Both { span, .. } => *span,
        }
    }
}

/// A list of words in a sentence, with the given conjunction before the last: `` `a`, `b` and `c` ``.
pub(super) struct Listed<'a>(pub(super) &'a [&'a str], pub(super) &'a str);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(words, last) = self;
        for (at, word) in words.iter().enumerate() {
            match at {
                0 => {}
                _ if at + 1 == words.len() => write!(f, " {last} ")?,
                _ => f.write_str(", ")?,
            }
            write!(f, "`{word}`")?;
        }
        Ok(())
    }
}
