//! Waiting for lines.

use std::ffi::OsStr;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use super::LaunchError;
use super::lines::Lines;
use crate::line::Line;

const POLL: Duration = Duration::from_millis(200);
/// As many lines of the serial line as fit below an error.
const LAST_WORDS: usize = 25;

/// A machine, or a program, whose lines are on the way. Dropping it ends it.
pub(super) trait Follow {
    /// The process.
    fn child(&mut self) -> &mut Child;

    /// All that has come out so far.
    fn output(&mut self) -> Result<Vec<u8>, LaunchError>;
}

/// What the outer kernel prints about a CPU that no task and no interrupt gets.
const SOFT_LOCKUP: &str = "BUG: soft lockup";

/// The limits of a wait for lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The last line must come before.
    pub(super) deadline: Instant,
    /// Whether a soft lockup of the outer kernel ends the wait.
    pub(super) ends_at_lockup: bool,
}

/// Gives every line to `lines` as it comes, until the last one.
///
/// # Errors
///
/// The machine ends, locks up, or a limit is reached, and the last line is not there.
pub(super) fn until_end(
    running: &mut dyn Follow,
    limits: Limits,
    lines: &mut Lines<'_>,
) -> Result<(), LaunchError> {
    let began = Instant::now();
    let (mut taken, mut heard) = (0, began);
    loop {
        // The order matters: what came out before the end is there after it.
        let ended = ended(running.child());
        let output = running.output()?;
        let complete = output
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        for text in String::from_utf8_lossy(&output[taken.min(complete)..complete]).lines() {
            if let Some(line) = Line::find(text) {
                heard = Instant::now();
                let last = matches!(line, Line::End { .. });
                lines.take(&line)?;
                if last {
                    return Ok(());
                }
            } else if limits.ends_at_lockup && text.contains(SOFT_LOCKUP) {
                return Err(LaunchError::LockedUp {
                    said: last_words(&output),
                });
            }
        }
        taken = complete;
        let said = || last_words(&output);
        if let Some(status) = ended {
            return Err(LaunchError::Ended {
                status,
                said: said(),
            });
        }
        if heard.elapsed() > lines.silence() {
            return Err(LaunchError::Silent {
                after_s: heard.elapsed().as_secs(),
                said: said(),
            });
        }
        if Instant::now() >= limits.deadline {
            return Err(LaunchError::TimedOut {
                after_s: began.elapsed().as_secs(),
                said: said(),
            });
        }
        thread::sleep(POLL);
    }
}

fn ended(child: &mut Child) -> Option<ExitStatus> {
    child.try_wait().ok().flatten()
}

fn last_words(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n")
}

/// A command for `program`, which is killed when this process ends, however that happens.
pub(super) fn command(program: impl AsRef<OsStr>) -> Command {
    // Of util-linux, which every system has; std has no safe way to do the same.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Ends a process that this one has started.
pub(super) fn kill(child: &mut Child) {
    // An error means that it is gone already.
    let _ = child.kill();
    let _ = child.wait();
}
