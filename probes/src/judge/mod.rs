//! Whether a guest does what is expected of it.
//!
//! ```text
//! events ────────┐
//! console ───────┼──▶ Judge ──▶ at any time: something is broken for good
//! the summary ───┘         └──▶ at the end: a verdict on each expectation
//! ```
//!
//! A state machine: it has no clock and no thread, and knows only what it is fed, so it judges a run here, a nested one
//! and one in a test alike. Whatever the guest says, it keeps a few hundred bytes for each expectation.
//!
//! What counts is never guessed. A probe that could not be armed, or that may have missed a hit, does not pass as one
//! that was not hit; see `tally`.

mod console;
mod tally;
#[cfg(test)]
mod tests;
mod watch;

use std::time::Duration;

use self::console::{Clock, Lines};
use self::watch::Watch;
use crate::{Event, Expectation, Expected, Summary};

/// Judges one run.
#[derive(Debug)]
pub struct Judge {
    watches: Vec<(Expectation, Watch)>,
    lines: Lines,
    clock: Clock,
    /// Whether anybody looks at the console.
    reads_console: bool,
}

/// What became of one expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The expectation, in words.
    pub expected: String,
    /// Why it does not hold; `None` if it does.
    pub broken: Option<String>,
    /// It is about the guest's end.
    pub of_the_end: bool,
}

impl Judge {
    /// Nothing has happened yet.
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

    /// Whether nothing is expected.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.watches.is_empty()
    }

    /// An event of the run, in its order. `now` is the time on any clock that the console is timed by, too.
    pub fn event(&mut self, now: Duration, event: &Event) {
        self.clock.event(now, event);
        for (expectation, watch) in &mut self.watches {
            watch.event(expectation, event);
        }
    }

    /// What the guest has written to its console.
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

    /// Why the run is to end at once, if it is.
    #[must_use]
    pub fn stops(&self) -> Option<&str> {
        self.watches
            .iter()
            .filter(|(expectation, _)| expectation.stop)
            .find_map(|(_, watch)| watch.broken())
    }

    /// The run is over, and this is what it says of itself.
    #[must_use]
    pub fn finish(mut self, summary: &Summary) -> Vec<Verdict> {
        let at = self.clock.last();
        let watches = &mut self.watches;
        // The last line of a guest that dies has no end.
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
