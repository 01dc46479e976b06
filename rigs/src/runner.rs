//! The run of a program's cases, one after the other, with a line for each.

use std::io::{self, Write};
use std::time::Instant;

use vmm::HostFacts;

use crate::line::{Backend, Case, Line, millis, print};
use crate::selection::is_selected;

/// Whether a case has passed, as in [`Case::ok`], and the counts or the error.
pub(crate) type Verdict = (Option<bool>, String);

/// The verdict of a case that can be run on every KVM.
pub(crate) fn verdict(result: Result<String, String>) -> Verdict {
    match result {
        Ok(detail) => (Some(true), detail),
        Err(detail) => (Some(false), detail),
    }
}

/// Runs the selected cases and prints their lines.
pub(crate) struct Runner<'a> {
    backend: Backend,
    only: &'a str,
    output: &'a mut dyn Write,
    cases: usize,
    failed: usize,
}

impl<'a> Runner<'a> {
    /// Prints the line of the self-test, which began at `began`. `only` selects cases.
    pub(crate) fn begin(
        backend: Backend,
        only: &'a str,
        facts: &HostFacts,
        began: Instant,
        output: &'a mut dyn Write,
    ) -> io::Result<Self> {
        let mut runner = Self {
            backend,
            only,
            output,
            cases: 0,
            failed: 0,
        };
        runner.print(&Line::Host {
            backend,
            facts: format!("{facts:?}"),
            took_ms: millis(began),
        })?;
        Ok(runner)
    }

    /// Runs the case `name` if the case is selected.
    pub(crate) fn case(&mut self, name: &str, run: impl FnOnce() -> Verdict) -> io::Result<()> {
        if !is_selected(self.only, name) {
            return Ok(());
        }
        let began = Instant::now();
        let (ok, detail) = run();
        self.cases += 1;
        self.failed += usize::from(ok == Some(false));
        self.print(&Line::Case(Case {
            backend: self.backend,
            case: name.to_owned(),
            ok,
            detail,
            took_ms: millis(began),
        }))
    }

    /// Prints a further line.
    pub(crate) fn print(&mut self, line: &Line) -> io::Result<()> {
        print(self.output, line)
    }

    /// Prints the last line. Returns the number of failed cases.
    pub(crate) fn end(mut self) -> io::Result<usize> {
        self.print(&Line::End {
            backend: self.backend,
            cases: self.cases,
            failed: self.failed,
        })?;
        Ok(self.failed)
    }
}
