//! The table of hyprobe's promises and the kinds of KVM, as Markdown, from the results of the last runs.

mod found;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::contract::{FEATURES, Feature};
use crate::launch::LaunchError;
use crate::line::{Backend, Case};

use found::Found;

/// Where the table is kept, from the repository's top.
pub const PAGE: &str = "docs/contract.md";

/// The page, from the lines in `results`.
///
/// # Errors
///
/// If there are no lines.
pub fn from_results(results: &Path) -> Result<String, LaunchError> {
    let found = Found::read(results);
    match found.cases.is_empty() {
        true => Err(LaunchError::NoResults {
            path: results.to_owned(),
        }),
        false => Ok(page(&found)),
    }
}

fn page(found: &Found) -> String {
    let mut text = String::from(
        "# What is promised, and where it holds\n\n\
         `rig table --write` wrote this page from the last runs of `make rig-intel rig-amd rig-nested rig-local` with\n\
         `RIG_ARGS=--stock`; see [rigs.md](rigs.md) for what they are. Do not edit it.\n\n\
         * **ok**: every case behind the promise that can be run there holds.\n\
         * **FAIL**: one does not; the reason is below.\n\
         * **cannot**: none can be run there; the reason is below.\n\
         * A star: one of the cases cannot be run there at all; the reason is below. Empty: not run.\n\n",
    );
    text.push_str(&runs(found));
    text.push_str("## Promises\n\n");
    text.push_str(&features(found));
    text.push_str("\n## Cases behind each\n\n");
    for (i, feature) in FEATURES.iter().enumerate() {
        let cases: Vec<String> = feature
            .cases
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        let _ = writeln!(text, "{}. {}", i + 1, cases.join(", "));
    }
    text.push_str("\n## Cases\n\nA case is `name/planted byte/vCPUs`. A dash: cannot.\n\n");
    text.push_str(&cases(found));
    section(&mut text, "What fails", &reasons(found, Some(false)));
    section(
        &mut text,
        "What cannot be run, and why",
        &reasons(found, None),
    );
    section(&mut text, "How hits got past", &tiers(found));
    text
}

fn section(text: &mut String, title: &str, list: &str) {
    let _ = write!(text, "\n## {title}\n\n");
    text.push_str(if list.is_empty() { "Nothing.\n" } else { list });
}

/// The platform of each column.
fn runs(found: &Found) -> String {
    let mut text = String::from("| | KVM | when | on |\n|---|---|---|---|\n");
    for (backend, run) in &found.runs {
        let (kvm, about) = (kvm(*backend), run.about.join("; "));
        let _ = writeln!(text, "| {backend} | {kvm} | {} | {about} |", run.date);
    }
    text.push('\n');
    text
}

const fn kvm(backend: Backend) -> &'static str {
    match backend {
        Backend::Intel => "kvm_intel, EPT, in Bochs",
        Backend::Amd => "kvm_amd, NPT, in Bochs",
        Backend::Nested => "kvm_amd, NPT, in QEMU's TCG",
        Backend::Local => "the host's own",
    }
}

fn header(first: &str) -> String {
    let mut text = format!("| {first} |");
    for backend in Backend::ALL {
        let _ = write!(text, " {backend} |");
    }
    text.push_str("\n|---|---|---|---|---|\n");
    text
}

fn features(found: &Found) -> String {
    let mut text = header("promise");
    for (i, feature) in FEATURES.iter().enumerate() {
        let _ = write!(text, "| {}. {} |", i + 1, feature.promise);
        for backend in Backend::ALL {
            let _ = write!(text, " {} |", cell(feature, backend, found));
        }
        text.push('\n');
    }
    text
}

fn cell(feature: &Feature, backend: Backend, found: &Found) -> &'static str {
    let mut outcomes = Vec::new();
    for name in feature.cases {
        let ran = |case: &&Case| case.backend == backend && found::scenario(&case.case) == *name;
        let of: Vec<Option<bool>> = found.cases.iter().filter(ran).map(|case| case.ok).collect();
        // If a variant fails, the case fails. If a variant passes, the case has passed, where the other variants cannot run.
        outcomes.extend(
            [Some(false), Some(true), None]
                .into_iter()
                .find(|ok| of.contains(ok)),
        );
    }
    let has = |ok| outcomes.contains(&ok);
    match (has(Some(false)), has(Some(true)), has(None)) {
        (true, _, _) => "**FAIL**",
        (_, true, false) => "ok",
        (_, true, true) => "ok*",
        (_, false, true) => "cannot",
        (_, false, false) => "",
    }
}

fn cases(found: &Found) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut cells: BTreeMap<(&str, Backend), &Case> = BTreeMap::new();
    for case in &found.cases {
        if !names.contains(&&*case.case) {
            names.push(&case.case);
        }
        cells.insert((&case.case, case.backend), case);
    }
    let mut text = header("case");
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

/// The details of the cases with the outcome `ok`, and the cases of each detail.
fn reasons(found: &Found, ok: Option<bool>) -> String {
    let mut said: BTreeMap<(Backend, &str), Vec<&str>> = BTreeMap::new();
    for case in found.cases.iter().filter(|case| case.ok == ok) {
        said.entry((case.backend, &case.detail))
            .or_default()
            .push(&case.case);
    }
    let mut text = String::new();
    for ((backend, detail), cases) in said {
        let cases: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
        let _ = writeln!(text, "* {backend}: {detail}: {}", cases.join(", "));
    }
    text
}

/// Of all instructions of all functions, and of a stock kernel.
fn tiers(found: &Found) -> String {
    let mut text = String::new();
    let told = ["instructions", "exits", "stock"];
    for case in found.cases.iter().filter(|case| case.ok == Some(true)) {
        if told.contains(&found::scenario(&case.case)) {
            let _ = writeln!(text, "* {}, `{}`: {}", case.backend, case.case, case.detail);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Found {
        let case = |backend, case: &str, ok| Case {
            backend,
            case: case.to_owned(),
            ok,
            detail: "why".to_owned(),
            took_ms: 0,
        };
        Found {
            runs: BTreeMap::new(),
            cases: vec![
                case(Backend::Amd, "calls/int3/1", Some(true)),
                case(Backend::Local, "calls/int3/1", None),
                case(Backend::Amd, "smp/int3/2", Some(false)),
                case(Backend::Amd, "calls/port/1", None),
                case(Backend::Amd, "flags/port/1", None),
            ],
        }
    }

    #[test]
    fn each_case_is_a_row() {
        let text = cases(&found());
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows[0], "| calls/int3/1 |  | ok |  | – |");
        assert_eq!(rows[1], "| smp/int3/2 |  | **FAIL** |  |  |");
    }

    #[test]
    fn a_promise_is_as_good_as_its_cases() {
        let feature = |cases| Feature { promise: "", cases };
        let cell = |cases, backend| cell(&feature(cases), backend, &found());
        assert_eq!(cell(&["calls"], Backend::Amd), "ok");
        assert_eq!(cell(&["calls", "flags"], Backend::Amd), "ok*");
        assert_eq!(cell(&["calls", "smp"], Backend::Amd), "**FAIL**");
        assert_eq!(cell(&["calls"], Backend::Local), "cannot");
        assert_eq!(cell(&["smp"], Backend::Local), "");
    }

    #[test]
    fn reasons_are_listed_once() {
        assert_eq!(
            reasons(&found(), None),
            "* amd: why: `calls/port/1`, `flags/port/1`\n* local: why: `calls/int3/1`\n"
        );
        assert_eq!(reasons(&found(), Some(false)), "* amd: why: `smp/int3/2`\n");
    }

    /// The page has the results of some day, but the promises of the code.
    #[test]
    fn the_page_has_the_rows_of_the_code() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = std::fs::read_to_string(top.join(PAGE)).expect(PAGE);
        let rows = |heading: &str| -> Vec<String> {
            page.lines()
                .skip_while(|line| *line != heading)
                .skip(1)
                .take_while(|line| !line.starts_with("## "))
                .filter(|line| !line.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let promises = rows("## Promises");
        assert_eq!(promises.len(), 2 + FEATURES.len());
        let behind = rows("## Cases behind each");
        assert_eq!(behind.len(), FEATURES.len());
        for (i, feature) in FEATURES.iter().enumerate() {
            let promise = format!("| {}. {} | ", i + 1, feature.promise);
            assert!(promises[2 + i].starts_with(&promise), "{promise}");
            for case in feature.cases {
                assert!(behind[i].contains(&format!("`{case}`")), "{case}");
            }
        }
    }
}
