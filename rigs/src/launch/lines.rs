//! The lines of a launch: shown, written to the file of results, and counted.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::{Launch, LaunchError, Program, error};
use crate::line::Line;
use crate::sweep::Step;

/// A sweep starts, lists functions and boots without probes within this time, or does not come to it.
const BEFORE_THE_FIRST_BOOT: Duration = Duration::from_secs(1500);

/// The file of results, and the counts of its lines.
pub(super) struct Lines<'a> {
    show: &'a dyn Fn(&Line),
    file: File,
    path: PathBuf,
    silence: Duration,
    cases: usize,
    failed: usize,
    total: Option<usize>,
}

impl<'a> Lines<'a> {
    /// Opens the file of results.
    pub(super) fn open(launch: &Launch<'_>, show: &'a dyn Fn(&Line)) -> Result<Self, LaunchError> {
        let is_sweep = matches!(launch.program, Program::Sweep { .. });
        let is_selection = launch
            .arguments
            .iter()
            .any(|word| word.starts_with("--only"));
        // If only some cases are run, the results of the others stay.
        let appends = is_sweep || is_selection;
        let path = launch.results.join(format!("{}.jsonl", launch.name()));
        let file = File::options()
            .create(true)
            .write(true)
            .append(appends)
            .truncate(!appends)
            .open(&path)
            .map_err(error::file("create", &path))?;
        Ok(Self {
            show,
            file,
            path,
            silence: match is_sweep {
                true => BEFORE_THE_FIRST_BOOT,
                false => launch.timeout,
            },
            cases: 0,
            failed: 0,
            total: None,
        })
    }

    /// Shows, writes and counts a line.
    pub(super) fn take(&mut self, line: &Line) -> Result<(), LaunchError> {
        (self.show)(line);
        match line {
            Line::Sweep(Step::Booting { limit_ms, .. }) => {
                self.silence = Duration::from_millis(*limit_ms);
            }
            Line::Sweep(_) => self.silence = BEFORE_THE_FIRST_BOOT,
            Line::Case(case) => {
                self.cases += 1;
                self.failed += usize::from(case.ok == Some(false));
            }
            Line::End { cases, failed, .. } => {
                self.total = Some(*cases);
                // The last line of a boot does not know the cases of earlier boots, and a sweep has no lines of cases.
                self.failed = self.failed.max(*failed);
            }
            _ => (),
        }
        let json = serde_json::to_string(line).unwrap_or_default();
        writeln!(self.file, "{json}").map_err(error::file("write", &self.path))
    }

    /// The time within which the next line must come.
    pub(super) const fn silence(&self) -> Duration {
        self.silence
    }

    /// Number of cases with a result.
    pub(super) const fn cases(&self) -> usize {
        self.cases
    }

    /// Number of failed cases.
    pub(super) const fn failed(&self) -> usize {
        self.failed
    }

    /// Number of cases of the whole launch, which the last line says.
    pub(super) const fn total(&self) -> Option<usize> {
        self.total
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }
}
