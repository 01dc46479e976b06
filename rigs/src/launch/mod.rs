//! Bringing a program to a kind of KVM, and its lines back.

mod about;
mod bochs;
mod error;
mod follow;
mod ground;
mod image;
mod iso;
mod lines;
mod local;
mod payload;
mod qemu;
mod stock;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::line::{Backend, Line};

pub use error::LaunchError;
pub(crate) use error::file as file_error;
pub use payload::Program;

use follow::{Follow, Limits};
use lines::Lines;
use payload::Payload;

/// What to run, and where.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Where.
    pub backend: Backend,
    /// What.
    pub program: Program<'a>,
    /// The directory with the programs of this package.
    pub programs: &'a Path,
    /// The directory for the lines, and for what the run was made of: `<backend>.jsonl` and `<backend>/`, or with the
    /// name of a program other than `contract`: `busy-<backend>`, `bench-<backend>`; a sweep has a name of its own.
    pub results: &'a Path,
    /// The last line must be there after this time.
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

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Number of cases.
    pub cases: usize,
    /// Number of those that failed.
    pub failed: usize,
    /// How often a CPU of the outer Linux locked up, and the next case was the first of another boot.
    pub restarts: usize,
    /// From the start to the last line.
    pub took: Duration,
    /// The lines.
    pub path: PathBuf,
}

/// Runs the program there. `show` gets each line when it comes.
///
/// # Errors
///
/// See [`LaunchError`]; a case that fails is none. Whatever was started is gone.
pub fn run(launch: &Launch<'_>, show: &dyn Fn(&Line)) -> Result<Launched, LaunchError> {
    let dir = scratch(launch)?;
    let payload = payload::build(launch, &dir)?;
    let began = Instant::now();
    let mut lines = Lines::open(launch, show)?;
    // Two vCPUs can lock up a CPU of Bochs's SVM (docs/rigs.md).
    let boots_again = matches!(
        (launch.program, launch.backend),
        (Program::Contract { .. }, Backend::Amd)
    );
    let (mut restarts, mut skipped) = (0, 0);
    loop {
        let mut machine = Machine::start(launch, &dir, &payload, skipped)?;
        if restarts == 0 {
            let release = machine.release.as_deref();
            lines.take(&about::about(launch.backend, release)?)?;
        }
        let limits = Limits {
            deadline: began + launch.timeout,
            ends_at_lockup: boots_again,
        };
        match follow::until_end(machine.running.as_mut(), limits, &mut lines) {
            // The case in which a CPU locks up is the first of the next boot. If a CPU locks up there again, the case fails.
            Err(LaunchError::LockedUp { .. }) if lines.cases() > skipped => {
                skipped = lines.cases();
                restarts += 1;
                lines.take(&Line::Restart {
                    backend: launch.backend,
                    cases: skipped,
                })?;
            }
            ended => break ended?,
        }
    }
    Ok(Launched {
        cases: lines.total().ok_or(LaunchError::NoEnd)?,
        failed: lines.failed(),
        restarts,
        took: began.elapsed(),
        path: lines.path(),
    })
}

/// A running program, with the Linux around it.
struct Machine {
    running: Box<dyn Follow>,
    /// The release of the outer Linux.
    release: Option<String>,
}

impl Machine {
    /// Starts `payload` behind its first `skipped` cases.
    fn start(
        launch: &Launch<'_>,
        dir: &Path,
        payload: &Payload,
        skipped: usize,
    ) -> Result<Self, LaunchError> {
        let module = match launch.backend {
            Backend::Intel => "kvm_intel",
            Backend::Amd | Backend::Nested => "kvm_amd",
            Backend::Local => {
                return Ok(Self {
                    running: Box::new(local::start(launch, dir, payload)?),
                    release: None,
                });
            }
        };
        let skip = match skipped {
            0 => Vec::new(),
            _ => vec!["--skip".to_owned(), skipped.to_string()],
        };
        let outer = image::build(launch, dir, payload, module, &skip)?;
        let memory_mib = payload.memory_mib;
        let running: Box<dyn Follow> = match launch.backend {
            Backend::Nested => Box::new(qemu::start(dir, &outer, memory_mib)?),
            _ => Box::new(bochs::start(launch, dir, &outer, memory_mib)?),
        };
        Ok(Self {
            running,
            release: Some(outer.release),
        })
    }
}

/// Adds a line to those that are kept.
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
/// It cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), LaunchError> {
    std::fs::write(path, text).map_err(error::file("write", path))
}

/// An empty directory for everything that the run is made of. It is left behind, for whoever wants to know why.
fn scratch(launch: &Launch<'_>) -> Result<PathBuf, LaunchError> {
    let dir = launch.results.join(launch.name());
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir_all(&dir).and_then(|()| dir.canonicalize()),
    }
    .map_err(error::file("make", &dir))
}
