//! What is kept of a case that failed: a folder with its console, its last events, its summary and its crash.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::TestError;
use super::attempt::{Attempt, Outcome};
use super::record::{crash_in_words, in_words};
use super::schedule::Finished;
use crate::report::json_line;

/// Writes the folder of `finished` in `all`, if it has failed; of several attempts, the last one's.
pub(super) fn write(all: &Path, finished: &Finished) -> Result<Option<PathBuf>, TestError> {
    let Some(attempt) = finished.attempts.last() else {
        return Ok(None);
    };
    if attempt.outcome == Outcome::Passed {
        return Ok(None);
    }
    let folder = all.join(finished.case.folder());
    match files(&folder, attempt) {
        Ok(()) => Ok(Some(folder)),
        Err(source) => Err(TestError::Write {
            path: folder,
            source,
        }),
    }
}

fn files(folder: &Path, attempt: &Attempt) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // Of an earlier failure, which may have had what this one has not.
    for name in ["crash.txt", "summary.json"] {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
    }
    fs::write(folder.join("console.log"), &attempt.console)?;
    let mut events = Vec::new();
    for event in &attempt.events {
        json_line(event, &mut events);
    }
    fs::write(folder.join("events.jsonl"), events)?;
    fs::write(folder.join("events.txt"), in_words(&attempt.events))?;
    let reasons = match &attempt.outcome {
        Outcome::Passed => String::new(),
        Outcome::Failed(reasons) => reasons.join("\n") + "\n",
        Outcome::Error { why, .. } => why.clone() + "\n",
    };
    fs::write(folder.join("reasons.txt"), reasons)?;
    if let Some(crash) = attempt.crash() {
        fs::write(folder.join("crash.txt"), crash_in_words(crash))?;
    }
    if let Some(summary) = &attempt.summary {
        fs::write(
            folder.join("summary.json"),
            serde_json::to_vec_pretty(summary)?,
        )?;
    }
    Ok(())
}
