//! What is wrong with a manifest.

use std::fmt;
use std::path::PathBuf;
use std::str::Utf8Error;

use files::ReadError;
use miette::{Diagnostic, LabeledSpan, NamedSource, SourceSpan};
use thiserror::Error;

use crate::SpecError;
use crate::program::ProgramError;
use crate::units::UnitError;

/// Why there is no manifest.
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
    /// It is not what a manifest should be.
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

/// A text that is no manifest, with the first of its problems.
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
            // Up to the end of the line before, and of the line behind.
            to_second_line_end(before) + label.len() + to_second_line_end(behind) <= SHOWN_BYTES
        };
        let mut labels = problem.labels().into_iter().flatten();
        labels.all(is_short)
    }

    /// The number of problems behind those.
    #[must_use]
    pub fn more(&self) -> usize {
        self.more
    }
}

/// One thing that is wrong.
#[derive(Debug, Error, Diagnostic)]
pub enum Problem {
    /// It is no TOML.
    #[error("this is not TOML")]
    Syntax {
        /// What the parser says.
        message: String,
        /// Where.
        #[label("{message}")]
        span: SourceSpan,
    },
    /// A key that does not exist.
    #[error("{table} has no key `{key}`")]
    UnknownKey {
        /// The table that it is in.
        table: &'static str,
        /// The key.
        key: String,
        /// The key.
        #[label("not known")]
        span: SourceSpan,
        /// What there is.
        #[help]
        help: Option<String>,
    },
    /// A value of another type.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// Its key.
        key: &'static str,
        /// The type that it should have.
        expected: &'static str,
        /// The type that it has.
        found: &'static str,
        /// The value.
        #[label("{found}")]
        span: SourceSpan,
        /// How it is written.
        #[help]
        help: Option<String>,
    },
    /// A word that is none of those that can be chosen from.
    #[error("`{key}` cannot be `{word}`")]
    NoChoice {
        /// Its key.
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
        /// Its key.
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
    /// A size or a time.
    #[error("`{key}` is not usable")]
    Unit {
        /// Its key.
        key: &'static str,
        /// What is wrong.
        error: UnitError,
        /// The value.
        #[label("{error}")]
        span: SourceSpan,
    },
    /// A probe.
    #[error("this is not a probe: {error}")]
    Spec {
        /// What is wrong.
        error: SpecError,
        /// The part of the probe that it is about.
        #[label("here")]
        span: SourceSpan,
        /// What to write instead.
        #[help]
        help: Option<String>,
    },
    /// A filter or an aggregate.
    #[error("`{key}` is not usable: {error}")]
    Program {
        /// Its key.
        key: &'static str,
        /// What is wrong.
        error: ProgramError,
        /// The part of it that it is about.
        #[label("here")]
        span: SourceSpan,
        /// What to write instead.
        #[help]
        help: Option<String>,
    },
    /// More of something than a manifest may have.
    #[error("there are {number} {what}")]
    TooMany {
        /// The things, in the plural.
        what: &'static str,
        /// Their maximum number.
        most: usize,
        /// Their number.
        number: usize,
        /// The first that is too many.
        #[label("the maximum is {most}")]
        span: SourceSpan,
    },
    /// A key without which the table means nothing.
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
    /// An empty string where something must be named.
    #[error("`{key}` is empty")]
    Empty {
        /// Its key.
        key: &'static str,
        /// The value.
        #[label("empty")]
        span: SourceSpan,
    },
    /// A regular expression.
    #[error("`{key}` is not a regular expression")]
    Regex {
        /// Its key.
        key: &'static str,
        /// What is wrong with it.
        message: String,
        /// The value.
        #[label("{message}")]
        span: SourceSpan,
    },
    /// A table that says nothing that can be done, or not all of it.
    #[error("{table} {what}")]
    Meaning {
        /// The table.
        table: &'static str,
        /// What is the matter.
        what: String,
        /// Where.
        #[label("here")]
        span: SourceSpan,
        /// What can be done.
        #[help]
        help: Option<String>,
    },
    /// Two keys of which one can be given.
    #[error("`{first}` and `{second}` exclude each other")]
    Both {
        /// The one.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// The one.
        #[label("either this")]
        span: SourceSpan,
        /// The other.
        #[label("or this")]
        other: SourceSpan,
    },
}

impl Problem {
    /// Where it is.
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

/// Words as a sentence lists them, with this one before the last: `` `a`, `b` and `c` ``.
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
