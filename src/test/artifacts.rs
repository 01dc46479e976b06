//! What is kept of a case that failed: a folder with its console, its last events, its summary and its crash.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::TestError;
use super::attempt::{Attempt, Outcome};
use super::record::{crash_in_words, in_words};
use super::schedule::Finished;
use crate::report::json_line;

/// The names of all files in a folder.
const FILES: [&str; 6] = [
    "console.log",
    "events.jsonl",
    "events.txt",
    "reasons.txt",
    "crash.txt",
    "summary.json",
];

/// Writes the folder of `finished` in `all`, if it has failed; of several attempts, the last one's.
pub(super) fn write(all: &Path, finished: &Finished) -> Result<Option<PathBuf>, TestError> {
    let Some(attempt) = finished.attempts.last() else {
        return Ok(None);
    };
    if attempt.outcome == Outcome::Passed {
        return Ok(None);
    }
    let folder = all.join(&finished.case.folder);
    match files(&folder, attempt) {
        Ok(()) => Ok(Some(folder)),
        Err(source) => Err(TestError::Write {
            path: folder,
            source,
        }),
    }
}

fn files(folder: &Path, attempt: &Attempt) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    // Of an earlier failure: it may have had others, and another mode.
    for name in FILES {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
    }
    let write = |name: &str, contents: &[u8]| write_private(&folder.join(name), contents);
    write("console.log", &attempt.console)?;
    let mut events = Vec::new();
    for event in &attempt.events {
        json_line(event, &mut events);
    }
    write("events.jsonl", &events)?;
    write("events.txt", in_words(&attempt.events).as_bytes())?;
    let reasons = match &attempt.outcome {
        Outcome::Passed => String::new(),
        Outcome::Failed(reasons) => reasons.join("\n") + "\n",
        Outcome::Error { why, .. } => why.clone() + "\n",
    };
    write("reasons.txt", reasons.as_bytes())?;
    if let Some(crash) = attempt.crash() {
        write("crash.txt", crash_in_words(crash).as_bytes())?;
    }
    if let Some(summary) = &attempt.summary {
        write("summary.json", &serde_json::to_vec_pretty(summary)?)?;
    }
    Ok(())
}

/// Writes a file that only its owner can read: the console and the registers may tell secrets of the guest.
fn write_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    options.open(path)?.write_all(contents)
}
