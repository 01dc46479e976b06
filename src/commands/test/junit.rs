//! The results in JUnit's form, for CI systems.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestRerun, TestSuite};

use super::attempt::{Attempt, Outcome};
use super::error::TestError;
use super::record::last_lines;
use super::schedule::Finished;
use crate::report::printable;

/// The number of console lines in a report.
const CONSOLE_LINES: usize = 100;

/// Writes all results to `path`.
pub(super) fn write(mut file: File, path: &Path, finished: &[Finished]) -> Result<(), TestError> {
    let text = report(finished).to_string()?;
    file.write_all(text.as_bytes())
        .map_err(|source| TestError::Write {
            path: path.to_owned(),
            source,
        })
}

fn report(finished: &[Finished]) -> Report {
    let mut suite = TestSuite::new("hyprobe");
    for case in finished {
        let Some((last, before)) = case.attempts.split_last() else {
            continue;
        };
        let reruns: Vec<_> = before.iter().filter_map(rerun).collect();
        let mut status = match failure(last) {
            None => TestCaseStatus::success(),
            Some(Failure {
                kind,
                message,
                text,
            }) => {
                let mut status = TestCaseStatus::non_success(kind);
                status.set_message(message).set_description(text);
                status
            }
        };
        status.add_reruns(reruns);
        let mut test = TestCase::new(&case.case.name, status);
        test.set_classname("hyprobe")
            .set_time(case.attempts.iter().map(|attempt| attempt.took).sum());
        let restarts = case.attempts.iter().flat_map(Attempt::restarts);
        let restarts = restarts.map(|why| format!("QEMU was started again: {}", printable(why)));
        let console = match last.outcome {
            Outcome::Passed => Vec::new(),
            _ => last_lines(&last.console, CONSOLE_LINES),
        };
        let out: Vec<String> = restarts.chain(console).collect();
        if !out.is_empty() {
            test.set_system_out(out.join("\n"));
        }
        suite.add_test_case(test);
    }
    let time = finished
        .iter()
        .flat_map(|case| &case.attempts)
        .map(|attempt| attempt.took)
        .sum();
    suite.set_time(time);
    let mut report = Report::new("hyprobe");
    report.set_time(time).add_test_suite(suite);
    report
}

struct Failure {
    kind: NonSuccessKind,
    message: String,
    text: String,
}

fn failure(attempt: &Attempt) -> Option<Failure> {
    match &attempt.outcome {
        Outcome::Passed => None,
        Outcome::Failed(reasons) => Some(Failure {
            kind: NonSuccessKind::Failure,
            message: reasons.first().cloned().unwrap_or_default(),
            text: reasons.join("\n"),
        }),
        Outcome::Error { why, .. } => Some(Failure {
            kind: NonSuccessKind::Error,
            message: why.lines().next().unwrap_or_default().to_owned(),
            text: why.clone(),
        }),
    }
}

/// The report of an attempt before the last.
fn rerun(attempt: &Attempt) -> Option<TestRerun> {
    let Failure {
        kind,
        message,
        text,
    } = failure(attempt)?;
    let mut rerun = TestRerun::new(kind);
    rerun
        .set_message(message)
        .set_description(text)
        .set_time(attempt.took);
    Some(rerun)
}
