//! Judges whether a guest meets its expectations.
//!
//! ```text
//! events ────────┐
//! console ───────┼──▶ Judge ──▶ at any time: something is broken for good
//! the summary ───┘         └──▶ at the end: a verdict on each expectation
//! ```
//!
//! The judge is a state machine without a clock or a thread. All input comes from the caller, so a run here, a nested run and a run in a
//! test are judged alike. The judge needs a few hundred bytes for each expectation, for any output of the guest.
//!
//! The judge never guesses. A probe that could not be armed, or that may have missed a hit, does not count as a probe without a hit; see
//! `tally`.

mod console;
mod tally;
#[cfg(test)]
mod tests;
mod watch;

use std::time::Duration;

use manifest::{Expectation, Expected};

use self::console::{Clock, Lines};
use self::watch::Watch;
use crate::{Event, Summary};

/// The judge of one run.
#[derive(Debug)]
pub struct Judge {
    watches: Vec<(Expectation, Watch)>,
    lines: Lines,
    clock: Clock,
    /// Whether an expectation is about the console.
    reads_console: bool,
}

/// The result of one expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The expectation, in words.
    pub expected: String,
    /// The reason why the expectation does not hold; `None` if it holds.
    pub broken: Option<String>,
    /// Whether the expectation is about the guest's end.
    pub of_the_end: bool,
}

impl Judge {
    /// A judge before the first event.
    #[must_use]
    pub fn new(expectations: Vec<Expectation>) -> Self {
        let reads_console = expectations
            .iter()
            .any(|expectation| matches!(expectation.what, Expected::Console { .. }));
        Self {
            watches: expectations
                .into_iter()
                .map(|expectation| {
                    let watch = Watch::new(&expectation);
                    (expectation, watch)
                })
                .collect(),
            lines: Lines::default(),
            clock: Clock::default(),
            reads_console,
        }
    }

    /// Whether there are no expectations.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.watches.is_empty()
    }

    /// Takes an event of the run, in order. `now` is the time on any clock, the same clock as for the console.
    pub fn event(&mut self, now: Duration, event: &Event) {
        self.clock.event(now, event);
        for (expectation, watch) in &mut self.watches {
            watch.event(expectation, event);
        }
    }

    /// Takes bytes written to the guest's console.
    pub fn console(&mut self, now: Duration, bytes: &[u8]) {
        if !self.reads_console {
            return;
        }
        let at = self.clock.console(now);
        let watches = &mut self.watches;
        self.lines.push(bytes, |line| {
            for (expectation, watch) in watches.iter_mut() {
                watch.line(expectation, at, line);
            }
        });
    }

    /// The reason to end the run at once, if any.
    #[must_use]
    pub fn stops(&self) -> Option<&str> {
        self.watches
            .iter()
            .filter(|(expectation, _)| expectation.stop)
            .find_map(|(_, watch)| watch.broken())
    }

    /// Judges the ended run, with its summary.
    #[must_use]
    pub fn finish(mut self, summary: &Summary) -> Vec<Verdict> {
        let at = self.clock.last();
        let watches = &mut self.watches;
        // The last line of a crashed guest has no line end.
        self.lines.finish(|line| {
            for (expectation, watch) in watches.iter_mut() {
                watch.line(expectation, at, line);
            }
        });
        self.watches
            .into_iter()
            .map(|(expectation, watch)| Verdict {
                expected: expectation.to_string(),
                of_the_end: matches!(expectation.what, Expected::End(_)),
                broken: watch.finish(&expectation, summary),
            })
            .collect()
    }
}
