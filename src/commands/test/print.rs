//! Results as they come, for people or for programs.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use events::Summary;
use serde::Serialize;

use super::attempt::{Attempt, Outcome};
use super::record::{crash_in_words, in_words, last_lines};
use super::schedule::{Finished, News};
use crate::report::{Ink, Progress, Style, printable};

/// The number of console lines printed for a failed case.
const CONSOLE_LINES: usize = 20;
/// The number of events printed for a failed case.
const EVENTS: usize = 8;

/// Writes to standard output, and keeps the progress line.
#[derive(Debug)]
pub(super) struct Printer {
    json: bool,
    style: Style,
    progress: Progress,
    all: usize,
    done: usize,
    running: BTreeSet<String>,
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    name: &'a str,
    outcome: &'static str,
    reasons: &'a [String],
    seconds: f64,
    attempts: usize,
    expectations: Vec<Expectation<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'a Summary>,
}

#[derive(Debug, Serialize)]
struct Expectation<'a> {
    expected: &'a str,
    holds: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

impl Printer {
    pub(super) fn new(json: bool, progress: Progress, all: usize) -> Self {
        Self {
            json,
            style: Style::for_stream(io::stdout().is_terminal()),
            progress,
            all,
            done: 0,
            running: BTreeSet::new(),
        }
    }

    /// Prints the news. Returns the finished case, if any.
    pub(super) fn print_news(&mut self, news: News) -> io::Result<Option<Finished>> {
        let finished = match news {
            News::Begun(name) => {
                self.running.insert(name);
                None
            }
            News::Finished(finished) => {
                self.running.remove(&finished.case.name);
                self.done += 1;
                Some(*finished)
            }
        };
        if let Some(finished) = &finished {
            self.result(finished)?;
        }
        let running: Vec<_> = self.running.iter().map(String::as_str).collect();
        let (done, all) = (self.done, self.all);
        self.progress
            .say(format!("{done} of {all}; running {}", running.join(", ")));
        Ok(finished)
    }

    fn result(&self, finished: &Finished) -> io::Result<()> {
        let Some(last) = finished.attempts.last() else {
            return Ok(());
        };
        let text = match self.json {
            true => json(finished, last)?,
            false => self.words(finished, last),
        };
        self.write(&text)
    }

    /// Prints the folder of the preceding case's artifacts.
    pub(super) fn artifacts(&self, folder: &Path) -> io::Result<()> {
        match self.json {
            true => Ok(()),
            false => self.write(&format!("      kept in {}\n", folder.display())),
        }
    }

    /// Prints the number of cases of each kind.
    pub(super) fn total(&self, finished: &[Finished]) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        let last = |case: &Finished| case.attempts.last().map(|attempt| attempt.outcome.clone());
        let count =
            |wanted: fn(&Outcome) -> bool| finished.iter().filter_map(last).filter(wanted).count();
        let passed = count(|outcome| *outcome == Outcome::Passed);
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let errors = finished.len() - passed - failed;
        let skipped = self.all - finished.len();
        let mut text = format!("\n{passed} passed, {failed} failed");
        for (number, what) in [(errors, "could not be run"), (skipped, "not begun")] {
            if number > 0 {
                text += &format!(", {number} {what}");
            }
        }
        self.write(&(text + "\n"))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        self.progress.pause(|| {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()
        })
    }

    fn words(&self, finished: &Finished, last: &Attempt) -> String {
        let (word, ink) = match &last.outcome {
            Outcome::Passed => ("ok  ", Ink::Good),
            Outcome::Failed(_) => ("FAIL", Ink::Bad),
            Outcome::Error { .. } => ("????", Ink::Bad),
        };
        let seconds = last.took.as_secs_f64();
        let name = &finished.case.name;
        let mut text = format!("{}  {seconds:7.1} s  {name}", self.style.paint(ink, word));
        if finished.attempts.len() > 1 {
            text += &format!(" (attempt {})", finished.attempts.len());
        }
        text.push('\n');
        let restarts = finished.attempts.iter().flat_map(Attempt::restarts);
        indent(
            &mut text,
            "QEMU was started again: ",
            restarts.map(|why| printable(why)),
        );
        match &last.outcome {
            Outcome::Passed => return text,
            Outcome::Failed(reasons) => indent(&mut text, "", reasons),
            Outcome::Error { why, .. } => indent(&mut text, "", why.lines()),
        }
        if let Some(crash) = last.crash() {
            text += "      where the kernel panicked:\n";
            indent(&mut text, "| ", crash_in_words(crash).lines());
        }
        let console = last_lines(&last.console, CONSOLE_LINES);
        if !console.is_empty() {
            text += "      the console's last lines:\n";
            indent(&mut text, "| ", &console);
        }
        let events = in_words(&last.events[last.events.len().saturating_sub(EVENTS)..]);
        if !events.is_empty() {
            text += "      the last events:\n";
            indent(&mut text, "| ", events.lines());
        }
        text
    }
}

fn indent(text: &mut String, mark: &str, lines: impl IntoIterator<Item = impl AsRef<str>>) {
    for line in lines {
        text.push_str("      ");
        text.push_str(mark);
        text.push_str(line.as_ref());
        text.push('\n');
    }
}

fn json(finished: &Finished, last: &Attempt) -> io::Result<String> {
    let why;
    let (outcome, reasons): (_, &[String]) = match &last.outcome {
        Outcome::Passed => ("passed", &[]),
        Outcome::Failed(reasons) => ("failed", reasons),
        Outcome::Error { why: text, .. } => {
            why = [text.clone()];
            ("error", &why)
        }
    };
    let line = Line {
        name: &finished.case.name,
        outcome,
        reasons,
        seconds: last.took.as_secs_f64(),
        attempts: finished.attempts.len(),
        expectations: last
            .verdicts
            .iter()
            .map(|verdict| Expectation {
                expected: &verdict.expected,
                holds: verdict.broken.is_none(),
                why: verdict.broken.as_deref(),
            })
            .collect(),
        summary: last.summary.as_ref(),
    };
    Ok(serde_json::to_string(&line)? + "\n")
}
