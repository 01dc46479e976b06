//! Starts a program on a kind of KVM, and collects the program's lines.

mod about;
mod bochs;
mod cases;
mod error;
mod follow;
mod ground;
mod image;
mod iso;
mod junit;
mod local;
mod payload;
mod qemu;
mod stock;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outer::Qemu;

use crate::line::{Backend, Line};
use crate::sweep::Step;

pub use error::LaunchError;
pub(crate) use error::file as file_error;
pub use payload::Program;

use follow::Follow;

/// The time limit for a sweep to start, list functions and boot without probes.
const BEFORE_THE_FIRST_BOOT: Duration = Duration::from_secs(1500);

/// The program to run, and the kind of KVM.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kind of KVM.
    pub backend: Backend,
    /// The program.
    pub program: Program<'a>,
    /// The directory with the programs of this package.
    pub programs: &'a Path,
    /// The directory for the lines and for the run's files, among them the results in JUnit's form: `<backend>.jsonl` and
    /// `<backend>/`, or with the name of a program other than `contract`: `busy-<backend>`, `bench-<backend>`; a sweep has its own name.
    pub results: &'a Path,
    /// The time limit for the last line.
    pub timeout: Duration,
    /// More arguments for the program.
    pub arguments: &'a [String],
}

impl Launch<'_> {
    fn name(&self) -> String {
        match self.program {
            Program::Contract { .. } => self.backend.word().to_owned(),
            Program::Bench { .. } | Program::Busy { .. } | Program::Ground { .. } => {
                format!("{}-{}", self.program.name(), self.backend)
            }
            Program::Sweep { name, .. } => name.to_owned(),
        }
    }
}

/// The result of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Number of cases.
    pub cases: usize,
    /// Number of failed cases.
    pub failed: usize,
    /// From the start to the last line.
    pub took: Duration,
    /// The lines.
    pub path: PathBuf,
}

/// Runs the program on the kind of KVM. `report` gets each line as it comes.
///
/// # Errors
///
/// See [`LaunchError`]; a failed case is not an error. All started processes have ended.
pub fn run(launch: &Launch<'_>, report: &dyn Fn(&Line)) -> Result<Launched, LaunchError> {
    let selected = cases::selected(launch)?;
    // Looked for first: the files below take minutes.
    let qemu = match launch.backend {
        Backend::Nested => Some(Qemu::find()?),
        Backend::Intel | Backend::Amd | Backend::Local => None,
    };
    let dir = scratch(launch)?;
    let payload = payload::build(launch, &dir)?;
    let outer = match launch.backend {
        Backend::Intel => Some(image::build(launch, &dir, &payload, "kvm_intel")?),
        Backend::Amd | Backend::Nested => Some(image::build(launch, &dir, &payload, "kvm_amd")?),
        Backend::Local => None,
    };
    let began = Instant::now();
    let mut running: Box<dyn Follow> = match (&outer, &qemu) {
        (Some(outer), Some(qemu)) => Box::new(qemu::start(qemu, &dir, outer)?),
        (Some(outer), None) => Box::new(bochs::start(launch, &dir, outer)?),
        (None, _) => Box::new(local::start(launch, &dir, &payload)?),
    };
    let path = launch.results.join(format!("{}.jsonl", launch.name()));
    // If only some cases run, the lines of the other cases stay.
    let some = match launch.program {
        Program::Sweep { .. } => true,
        Program::Contract { .. }
        | Program::Bench { .. }
        | Program::Busy { .. }
        | Program::Ground { .. } => cases::only(launch.arguments).is_some(),
    };
    let mut file = File::options()
        .create(true)
        .write(true)
        .append(some)
        .truncate(!some)
        .open(&path)
        .map_err(error::file("create", &path))?;
    let (mut end, mut lines) = (None, Vec::new());
    let silence = Cell::new(match launch.program {
        Program::Sweep { .. } => BEFORE_THE_FIRST_BOOT,
        Program::Contract { .. }
        | Program::Bench { .. }
        | Program::Busy { .. }
        | Program::Ground { .. } => launch.timeout,
    });
    let mut keep = |line: Line| {
        report(&line);
        if let Line::Sweep(step) = &line {
            silence.set(match step {
                Step::Booting { limit_ms, .. } => Duration::from_millis(*limit_ms),
                _ => BEFORE_THE_FIRST_BOOT,
            });
        }
        if let Line::End { cases, failed, .. } = &line {
            end = Some((*cases, *failed));
        }
        let json = serde_json::to_string(&line).unwrap_or_default();
        lines.push(line);
        writeln!(file, "{json}").map_err(error::file("write", &path))
    };
    let release = outer.as_ref().map(|outer| &*outer.release);
    keep(about::about(launch.backend, qemu.as_ref(), release)?)?;
    let deadline = began + launch.timeout;
    let ended = follow::until_end(running.as_mut(), deadline, &silence, &mut keep);
    let written = match launch.program {
        // A sweep has findings, not cases.
        Program::Sweep { .. } => Ok(()),
        _ => junit::write(
            &dir,
            &launch.name(),
            &selected,
            &lines,
            ended.as_ref().err(),
        ),
    };
    ended.and(written)?;
    let (cases, failed) = end.ok_or(LaunchError::NoEnd)?;
    Ok(Launched {
        cases,
        failed,
        took: began.elapsed(),
        path,
    })
}

/// Adds a line to the kept lines.
pub(crate) fn keep(path: &Path, line: &Line) -> Result<(), LaunchError> {
    let json = serde_json::to_string(line).unwrap_or_default();
    let file = File::options().append(true).open(path);
    file.and_then(|mut file| writeln!(file, "{json}"))
        .map_err(error::file("write", path))
}

/// Writes a file.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), LaunchError> {
    std::fs::write(path, text).map_err(error::file("write", path))
}

/// An empty directory for the run's files. The directory stays after the run, for a look at the cause of a failure.
fn scratch(launch: &Launch<'_>) -> Result<PathBuf, LaunchError> {
    let dir = launch.results.join(launch.name());
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir_all(&dir).and_then(|()| dir.canonicalize()),
    }
    .map_err(error::file("make", &dir))
}
