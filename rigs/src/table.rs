//! Cases × kinds of KVM, as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::launch::LaunchError;
use crate::line::{Backend, Case, Line};

/// The table of what is in `results`.
///
/// # Errors
///
/// There is nothing.
pub fn from_results(results: &Path) -> Result<String, LaunchError> {
    let mut found = Vec::new();
    for backend in Backend::ALL {
        // One that has not been run has no column's contents.
        let Ok(text) = std::fs::read_to_string(results.join(format!("{backend}.jsonl"))) else {
            continue;
        };
        found.extend(
            text.lines()
                .filter_map(Line::find)
                .filter_map(|line| match line {
                    Line::Case(case) => Some(case),
                    Line::Host { .. } | Line::End { .. } => None,
                }),
        );
    }
    match found.is_empty() {
        true => Err(LaunchError::NoResults {
            path: results.to_owned(),
        }),
        false => Ok(table(&found)),
    }
}

fn table(found: &[Case]) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut cells: BTreeMap<(&str, Backend), &Case> = BTreeMap::new();
    for case in found {
        if !names.contains(&&*case.case) {
            names.push(&case.case);
        }
        cells.insert((&case.case, case.backend), case);
    }
    let mut text = String::from("| case |");
    for backend in Backend::ALL {
        let _ = write!(text, " {backend} |");
    }
    text.push_str("\n|---|---|---|---|---|\n");
    for name in names {
        let _ = write!(text, "| {name} |");
        for backend in Backend::ALL {
            let cell = match cells.get(&(name, backend)).map(|case| case.ok) {
                Some(Some(true)) => "ok",
                Some(Some(false)) => "**FAIL**",
                Some(None) => "–",
                None => "",
            };
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_a_row() {
        let case = |backend, case: &str, ok| Case {
            backend,
            case: case.to_owned(),
            ok,
            detail: String::new(),
            took_ms: 0,
        };
        let found = [
            case(Backend::Amd, "calls/int3/1", Some(true)),
            case(Backend::Local, "calls/int3/1", None),
            case(Backend::Amd, "smp/int3/2", Some(false)),
        ];
        let text = table(&found);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows[0], "| calls/int3/1 |  | ok |  | – |");
        assert_eq!(rows[1], "| smp/int3/2 |  | **FAIL** |  |  |");
    }
}
