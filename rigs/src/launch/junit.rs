//! The results of a launch in JUnit's form, for CI systems.

use std::path::Path;
use std::time::Duration;

use errors::chain;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::LaunchError;
use crate::line::{Case, Line};

/// Writes the results of the launch `name` to `junit.xml` in the directory `dir`. `selected` has the names of the cases to run. If the run ended early,
/// `error` is the reason.
pub(super) fn write(
    dir: &Path,
    name: &str,
    selected: &[String],
    lines: &[Line],
    error: Option<&LaunchError>,
) -> Result<(), LaunchError> {
    let mut report = Report::new("rig");
    report.add_test_suite(suite(name, selected, lines, error.map(chain)));
    super::write(&dir.join("junit.xml"), &report.to_string()?)
}

fn suite(name: &str, selected: &[String], lines: &[Line], error: Option<String>) -> TestSuite {
    let mut suite = TestSuite::new(name);
    let mut missing: Vec<&str> = selected.iter().map(String::as_str).collect();
    for line in lines {
        match line {
            Line::Run {
                date,
                host,
                versions,
                ..
            } => {
                let versions = versions.join("; ");
                let properties = [("date", date), ("host", host), ("versions", &versions)];
                suite.add_properties(properties.map(|(key, value)| (key, &**value)));
            }
            Line::Host { facts, .. } => {
                suite.add_property(("facts", &**facts));
            }
            Line::Case(case) => {
                missing.retain(|missing| *missing != case.case);
                let mut test = TestCase::new(&case.case, status(case));
                test.set_time(Duration::from_millis(case.took_ms));
                if case.ok == Some(true) {
                    test.set_system_out(&case.detail);
                }
                suite.add_test_case(test);
            }
            Line::Timing(_)
            | Line::Arming(_)
            | Line::Boot(_)
            | Line::Sweep(_)
            | Line::End { .. } => (),
        }
    }
    // Cases run in order: the run ended in the first case without a line.
    let error = error.unwrap_or_else(|| "the run ended without this case".to_owned());
    let mut ended = TestCaseStatus::non_success(NonSuccessKind::Error);
    ended
        .set_message(error.lines().next().unwrap_or_default())
        .set_description(&error);
    let mut not_run = TestCaseStatus::skipped();
    not_run.set_message("not run: the run ended before this case");
    let statuses = std::iter::once(ended).chain(std::iter::repeat(not_run));
    suite.add_test_cases(
        missing
            .into_iter()
            .zip(statuses)
            .map(|(case, status)| TestCase::new(case, status)),
    );
    for test in &mut suite.test_cases {
        test.set_classname(name);
    }
    suite
}

fn status(case: &Case) -> TestCaseStatus {
    let mut status = match case.ok {
        Some(true) => return TestCaseStatus::success(),
        Some(false) => TestCaseStatus::non_success(NonSuccessKind::Failure),
        None => TestCaseStatus::skipped(),
    };
    status.set_message(&case.detail);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Backend;

    fn line(case: &str, ok: Option<bool>) -> Line {
        Line::Case(Case {
            backend: Backend::Amd,
            case: case.to_owned(),
            ok,
            detail: "840 hits".to_owned(),
            took_ms: 12,
        })
    }

    #[test]
    fn run_that_dies_is_an_error_in_the_first_case_without_a_line() {
        let selected = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let lines = [
            line("a", Some(true)),
            line("b", Some(false)),
            line("c", None),
        ];
        let error = "no line for 9 s; the last words:\noops".to_owned();
        let suite = suite("amd", &selected, &lines, Some(error));
        let counts = (suite.tests, suite.failures, suite.errors, suite.disabled);
        assert_eq!(counts, (5, 1, 1, 2));
        let TestCaseStatus::NonSuccess { kind, message, .. } = &suite.test_cases[3].status else {
            panic!("{suite:?}");
        };
        assert_eq!(*kind, NonSuccessKind::Error);
        let message = message.as_ref().map(|message| message.as_str());
        assert_eq!(message, Some("no line for 9 s; the last words:"));
    }
}
