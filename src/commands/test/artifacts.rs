//! The artifacts of a failed case: a folder with the console, the last events, the summary and the crash.

use std::io;
use std::path::{Path, PathBuf};

use events::LogEnd;
use files::{CreateError, Folder};

use super::attempt::{Attempt, Outcome};
use super::core_dump;
use super::error::TestError;
use super::record::{crash_in_words, in_words};
use super::schedule::Finished;
use crate::report::{StackText, json_line, printable, printable_line};

/// If the case has failed, writes the folder of `finished` into `all`, whose path is `path`. Of several attempts, the last counts.
pub(super) fn write(
    all: &Folder,
    path: &Path,
    finished: &Finished,
) -> Result<Option<PathBuf>, TestError> {
    let Some(attempt) = finished.attempts.last() else {
        return Ok(None);
    };
    if attempt.outcome == Outcome::Passed {
        return Ok(None);
    }
    let name = &finished.case.folder;
    let path = path.join(name);
    let folder = all.subfolder(name);
    let folder = folder.map_err(|source| TestError::Create {
        path: path.clone(),
        source,
    })?;
    for (name, contents) in contents(attempt) {
        let failed = |source| TestError::Create {
            path: path.join(name),
            source,
        };
        // An earlier failure may have left other files, and files of another mode.
        folder.remove(name).map_err(failed)?;
        if let Some(contents) = contents {
            let contents = contents.map_err(CreateError::from).map_err(failed)?;
            folder.write_new(name, &contents).map_err(failed)?;
        }
    }
    if !attempt.has_dump {
        let failed = |source| TestError::Create {
            path: path.join(core_dump::NAME),
            source,
        };
        // Of an earlier failure.
        folder.remove(core_dump::NAME).map_err(failed)?;
    }
    Ok(Some(path))
}

/// The end of the kernel's log in text, with what is missing.
fn log_text(log: &LogEnd) -> String {
    let left_out = match log.left_out {
        0 => String::new(),
        lines => format!("… {lines} earlier lines are left out\n"),
    };
    let missing = log
        .missing
        .as_ref()
        .map(|why| format!("… {}\n", printable(why)));
    let lines = log
        .text
        .lines()
        .map(|line| format!("{}\n", printable_line(line)));
    std::iter::once(left_out)
        .chain(lines)
        .chain(missing)
        .collect()
}

/// The names of all files of a case, each with the contents if `attempt` has any.
fn contents(attempt: &Attempt) -> [(&'static str, Option<io::Result<Vec<u8>>>); 8] {
    let mut events = Vec::new();
    for event in &attempt.events {
        json_line(event, &mut events);
    }
    let reasons = match &attempt.outcome {
        Outcome::Passed => String::new(),
        Outcome::Failed(reasons) => reasons.join("\n") + "\n",
        Outcome::Error { why, .. } => why.clone() + "\n",
    };
    let crash = attempt.crash().map(crash_in_words);
    let stacks: Vec<String> = attempt
        .vcpus()
        .iter()
        .map(|vcpu| StackText::from(vcpu).lines())
        .collect();
    let stacks = (!stacks.is_empty()).then(|| stacks.join("\n"));
    let log = attempt.log().map(log_text);
    let summary = attempt.summary.as_ref().map(serde_json::to_vec_pretty);
    [
        ("console.log", Some(Ok(attempt.console.clone()))),
        ("events.jsonl", Some(Ok(events))),
        ("events.txt", Some(Ok(in_words(&attempt.events).into()))),
        ("reasons.txt", Some(Ok(reasons.into()))),
        ("crash.txt", crash.map(|crash| Ok(crash.into()))),
        ("stacks.txt", stacks.map(|stacks| Ok(stacks.into()))),
        ("dmesg.txt", log.map(|log| Ok(log.into()))),
        (
            "summary.json",
            summary.map(|summary| summary.map_err(io::Error::from)),
        ),
    ]
}
