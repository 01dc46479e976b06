//! Prints errors for the user.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;

use errors::{causes, chain};
use manifest::{InvalidManifest, Problem};
use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, SourceCode};

use crate::exit::Failure;
use crate::report::{Ink, Style, printable};
use crate::stderr::say;

/// The greatest width of a diagnostic, with or without a terminal.
const DIAGNOSTIC_COLUMNS: usize = 100;

/// The maximum length of a diagnostic's words, if the diagnostic cannot be drawn: the words quote the manifest.
const DIAGNOSTIC_CHARS: usize = 300;

/// The lines of a message, each without characters that control a terminal: names of files and links may be another user's choice.
fn lines(message: &str) -> String {
    let lines: Vec<_> = message.lines().map(printable).collect();
    lines.join("\n")
}

/// Prints an error with its causes, or with the spots in the manifest.
pub(crate) fn print(failure: &dyn Failure) {
    let style = Style::for_stream(std::io::stderr().is_terminal());
    say(format_args!(
        "{} {}",
        style.paint(Ink::Bad, "error:"),
        lines(&failure.to_string())
    ));
    if let Some(manifest) = failure.manifest() {
        say(spots(manifest, style).trim_end_matches('\n'));
        return;
    }
    let mut said = failure.to_string();
    for cause in causes(failure) {
        let text = cause.to_string();
        // An error that is printed like its source adds nothing.
        if text != said {
            say(format_args!("  caused by: {}", lines(&text)));
            said = text;
        }
    }
    if let Some(help) = failure.help() {
        say(format_args!(
            "  {} {}",
            style.paint(Ink::Good, "help:"),
            lines(&help)
        ));
    }
}

/// An error with its causes in one line, for a terminal.
pub(crate) fn in_one_line(error: &dyn Error) -> String {
    lines(&chain(error))
}

/// Draws each problem below its line of the manifest.
fn spots(manifest: &InvalidManifest, style: Style) -> String {
    let theme = if style.has_colour() {
        GraphicalTheme::unicode()
    } else {
        GraphicalTheme::unicode_nocolor()
    };
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_links(false)
        .with_width(style.width.unwrap_or(DIAGNOSTIC_COLUMNS));
    let mut text = String::new();
    for problem in manifest.problems() {
        // Writing to a string cannot fail.
        let _ = match manifest.has_short_lines(problem) {
            true => handler.render_report(&mut text, &Located { problem, manifest }),
            false => in_words(&mut text, problem, manifest),
        };
    }
    if manifest.more() > 0 {
        let _ = writeln!(text, "… and {} more", manifest.more());
    }
    text
}

/// A problem whose lines are too long to be drawn.
fn in_words(text: &mut String, problem: &Problem, manifest: &InvalidManifest) -> fmt::Result {
    let cut = |words: String| match words.char_indices().nth(DIAGNOSTIC_CHARS) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    };
    let place = manifest.place(problem);
    writeln!(text, "{place}: {}", cut(problem.to_string()))?;
    match problem.help() {
        Some(help) => writeln!(text, "  help: {}", cut(help.to_string())),
        None => Ok(()),
    }
}

/// A problem with the text of the manifest.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
struct Located<'a> {
    problem: &'a Problem,
    manifest: &'a InvalidManifest,
}

impl Diagnostic for Located<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.problem.help()
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.problem.labels()
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.manifest.source_code()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_keeps_its_lines_and_loses_characters_that_control_a_terminal() {
        assert_eq!(lines("a\u{1b}[31m\n  b\u{7}"), "a\\x1b[31m\n  b\\x07");
        let error = std::io::Error::other("x\u{9b}y");
        assert_eq!(in_one_line(&error), "x\\u{9b}y");
    }
}
