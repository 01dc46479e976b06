//! The outer part of a sweep: a launch for each mode, and another launch whenever the Linux around the guest dies.
//!
//! The campaign keeps each line of a launch at once, so that results outlive the launch. If the Linux dies during a boot, the
//! boot is noted as harmed, and the next launch continues behind the boot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::options::Options;
use super::outcome::Outcome;
use super::step::{BootKey, Plan, Step, Sum};
use super::{Mode, page, program};
use crate::launch::{self, Launch, LaunchError, Program, file_error};
use crate::line::{Backend, Line};

/// The name of the program that sweeps.
const SWEEP: &str = "sweep";
/// A Linux that dies more often than this has a cause beyond the reach of a search.
const RESTARTS_MAX: usize = 60;

/// A sweep of one kernel in some modes.
#[derive(Clone, Copy, Debug)]
pub struct Campaign<'a> {
    /// The KVM to run on.
    pub backend: Backend,
    /// The kernel, in the catalog of images.
    pub image: &'a str,
    /// The options of the sweep.
    pub options: &'a Options,
    /// The directory with the programs of this package.
    pub programs: &'a Path,
    /// The directory for the lines.
    pub results: &'a Path,
    /// The time limit of each mode.
    pub timeout: Duration,
}

/// The result of a mode.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The mode.
    pub mode: Mode,
    /// The sum; `None` if the KVM cannot run the mode.
    pub sum: Option<Sum>,
    /// The file with the lines.
    pub path: PathBuf,
}

impl Cell {
    /// Whether a function was harmed.
    #[must_use]
    pub fn has_harm(&self) -> bool {
        let findings = self.sum.iter().flat_map(|sum| &sum.findings);
        findings.into_iter().any(|found| found.kind.is_harm())
    }
}

impl Campaign<'_> {
    /// Runs each mode. `report` gets each line as it comes.
    ///
    /// # Errors
    ///
    /// See [`LaunchError`]; a harmed guest is not an error.
    pub fn run(&self, report: &dyn Fn(&Line)) -> Result<Vec<Cell>, LaunchError> {
        let modes = self.options.modes().iter();
        modes.map(|mode| self.mode(*mode, report)).collect()
    }

    /// The name of the file with the lines of `mode`.
    fn name(&self, mode: Mode) -> String {
        page::file_name(
            self.image,
            mode,
            self.options.cpus.unwrap_or(mode.cpus()),
            self.backend,
            self.options.is_sample(),
        )
    }

    /// Copies the program that sweeps to `programs`, and returns its hash.
    fn keep_program(&self, programs: &Path) -> Result<String, LaunchError> {
        fs::create_dir_all(programs).map_err(file_error("make", programs))?;
        let from = self.programs.join(SWEEP);
        let program = fs::read(&from).map_err(file_error("read", &from))?;
        let to = programs.join(SWEEP);
        fs::write(&to, &program).map_err(file_error("write", &to))?;
        Ok(program::hash([&*program]))
    }

    fn mode(&self, mode: Mode, report: &dyn Fn(&Line)) -> Result<Cell, LaunchError> {
        let name = self.name(mode);
        let path = self.results.join(format!("{name}.jsonl"));
        let kept = match (self.options.resume, fs::read_to_string(&path)) {
            (false, _) => String::new(),
            (true, Ok(text)) => text,
            (true, Err(error)) if error.kind() == io::ErrorKind::NotFound => String::new(),
            (true, Err(error)) => return Err(file_error("read", &path)(error)),
        };
        let mut options = self.options.clone();
        let mut seed = self.options.seed.unwrap_or_else(new_seed);
        // A build may replace the program while the sweep runs, and each launch must have the same.
        let programs = self.results.join(format!("{name}.programs"));
        let program = self.keep_program(&programs)?;
        if let Some(plan) = last_plan(&kept) {
            if program != plan.program {
                return Err(LaunchError::OtherBuild { path });
            }
            (seed, options.batch) = (plan.seed, plan.batch);
        } else {
            fs::write(&path, "").map_err(file_error("write", &path))?;
        }
        let arguments = [
            vec!["--mode".to_owned(), mode.word()],
            vec!["--program".to_owned(), program],
            options.arguments(seed),
        ]
        .concat();
        let began = Instant::now();
        let mut deaths = 0;
        loop {
            let launch = Launch {
                backend: self.backend,
                program: Program::Sweep {
                    image: self.image,
                    name: &name,
                },
                programs: &programs,
                results: self.results,
                timeout: self.timeout.saturating_sub(began.elapsed()),
                arguments: &arguments,
            };
            match launch::run(&launch, report) {
                Ok(_) => break,
                Err(error) if error.is_death() && deaths < RESTARTS_MAX => {
                    deaths += 1;
                    let text = fs::read_to_string(&path).map_err(file_error("read", &path))?;
                    let Some(death) = death(&text, &error) else {
                        return Err(error);
                    };
                    report(&death);
                    launch::keep(&path, &death)?;
                }
                Err(error) => return Err(error),
            }
        }
        let text = fs::read_to_string(&path).map_err(file_error("read", &path))?;
        Ok(Cell {
            mode,
            sum: last_sum(&text),
            path,
        })
    }
}

/// A new seed, from the clock.
fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(1, |since| since.as_secs() ^ u64::from(since.subsec_nanos()))
}

fn last_plan(text: &str) -> Option<Plan> {
    let lines = text.lines().rev().filter_map(Line::find);
    lines.into_iter().find_map(|line| match line {
        Line::Sweep(Step::Plan(plan)) => Some(plan),
        _ => None,
    })
}

fn last_sum(text: &str) -> Option<Sum> {
    let mut lines = text.lines().rev().filter_map(Line::find);
    // The sum of an earlier launch does not count.
    lines.find_map(|line| match line {
        Line::Sweep(Step::Sum(sum)) => Some(Some(sum)),
        Line::Run { .. } | Line::Sweep(Step::Plan(_)) => Some(None),
        _ => None,
    })?
}

/// The line that notes the death of the Linux around the guest during the present boot. `None` if no boot was running: another
/// launch would die the same way.
fn death(text: &str, error: &LaunchError) -> Option<Line> {
    let mut under_way: Option<(BootKey, usize)> = None;
    for line in text.lines().filter_map(Line::find) {
        match line {
            Line::Sweep(Step::Booting { key, functions, .. }) => under_way = Some((key, functions)),
            // If a launch ends before the plan, the launch has booted nothing.
            Line::Run { .. } | Line::Sweep(Step::Booted { .. } | Step::Plan(_)) => under_way = None,
            _ => (),
        }
    }
    let (key, functions) = under_way?;
    Some(Line::Sweep(Step::Booted {
        key,
        functions,
        took_ms: 0,
        outcome: Outcome::Harmed {
            reason: format!("the Linux around the guest died: {error}"),
            suspects: Vec::new(),
        },
        killed_outer: true,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::outcome::{FunctionId, Tally};

    fn error() -> LaunchError {
        LaunchError::Silent {
            after_s: 9,
            said: "Kernel panic".to_owned(),
        }
    }

    fn text(steps: &[Step]) -> String {
        let lines = steps.iter().cloned().map(Line::Sweep);
        lines
            .map(|line| serde_json::to_string(&line).expect("json") + "\n")
            .collect()
    }

    fn booting(id: u32) -> Step {
        Step::Booting {
            key: BootKey::of(&[FunctionId(id)]),
            functions: 1,
            limit_ms: 1,
        }
    }

    fn booted(id: u32) -> Step {
        Step::Booted {
            key: BootKey::of(&[FunctionId(id)]),
            functions: 1,
            took_ms: 1,
            outcome: Outcome::Well(Tally::default()),
            killed_outer: false,
        }
    }

    #[test]
    fn death_is_of_the_boot_that_has_not_ended() {
        let died = death(&text(&[booting(1), booted(1), booting(2)]), &error());
        let Some(Line::Sweep(Step::Booted {
            key,
            outcome,
            killed_outer,
            ..
        })) = died
        else {
            panic!("{died:?}");
        };
        assert_eq!(key, BootKey::of(&[FunctionId(2)]));
        assert!(killed_outer);
        let Outcome::Harmed { reason, .. } = outcome else {
            panic!("{outcome:?}");
        };
        assert!(reason.contains("Kernel panic"), "{reason}");
    }

    #[test]
    fn launch_that_ends_before_its_plan_has_booted_nothing() {
        let run = Line::Run {
            backend: Backend::Nested,
            date: String::new(),
            host: String::new(),
            versions: Vec::new(),
        };
        let run = serde_json::to_string(&run).expect("json");
        let text = text(&[booting(1)]) + &run + "\n";
        assert_eq!(death(&text, &error()), None);
    }

    #[test]
    fn death_between_boots_is_no_boots_doing() {
        assert_eq!(death(&text(&[booting(1), booted(1)]), &error()), None);
        assert_eq!(death("", &error()), None);
    }
}
