//! Waiting for lines.

use std::cell::Cell;
use std::ffi::OsStr;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use super::LaunchError;
use crate::line::Line;

const POLL: Duration = Duration::from_millis(200);
/// As many lines of the serial line as fit below an error.
const LAST_WORDS: usize = 25;

/// A machine or program that prints lines. The process ends when the value is dropped.
pub(super) trait Follow {
    /// The process.
    fn child(&mut self) -> &mut Child;

    /// All output until now.
    fn output(&mut self) -> Result<Vec<u8>, LaunchError>;
}

/// Gives every line to `take` as it comes, until the last line. `silence` is the time limit for the next line; `take` may change the
/// limit.
///
/// # Errors
///
/// If the machine ends, or the time is over, before the last line.
pub(super) fn until_end(
    running: &mut dyn Follow,
    deadline: Instant,
    silence: &Cell<Duration>,
    take: &mut dyn FnMut(Line) -> Result<(), LaunchError>,
) -> Result<(), LaunchError> {
    let began = Instant::now();
    let (mut taken, mut heard) = (0, began);
    loop {
        // The order matters: if the process has ended, all output is present afterwards.
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
                take(line)?;
                if last {
                    return Ok(());
                }
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
        if heard.elapsed() > silence.get() {
            return Err(LaunchError::Silent {
                after_s: heard.elapsed().as_secs(),
                said: said(),
            });
        }
        if Instant::now() >= deadline {
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

/// A command for `program`. If the rig's process ends in any way, the kernel kills the program.
pub(super) fn command(program: impl AsRef<OsStr>) -> Command {
    // Of util-linux, which every system has; std has no safe way to do the same.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Ends a child process.
pub(super) fn kill(child: &mut Child) {
    // An error means that the process has already ended.
    let _ = child.kill();
    let _ = child.wait();
}
