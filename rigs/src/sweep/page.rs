//! Kernels × modes, as Markdown, from the lines of the last sweeps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::Mode;
use super::options::KERNELS;
use super::outcome::{Finding, FindingKind, Tally};
use super::step::{Plan, Step, Sum};
use crate::launch::LaunchError;
use crate::line::{Backend, Line};

/// The page's path from the repository's top.
pub const PAGE: &str = "docs/sweep.md";

/// The number of names printed of a set that failed by chance.
const NAMES: usize = 8;
const PREFIX: &str = "sweep-";

/// The state of a mode with a kernel.
#[derive(Clone, Debug, Default)]
struct Cell {
    image: String,
    backend: Option<Backend>,
    plan: Option<Plan>,
    sum: Option<Sum>,
    cannot: Option<String>,
    /// The number of batches ended.
    batches: usize,
    /// Findings so far.
    findings: Vec<Finding>,
    date: String,
    host: String,
}

/// The name of the file with a cell's lines.
pub(super) fn file_name(
    image: &str,
    mode: Mode,
    cpus: u8,
    backend: Backend,
    is_sample: bool,
) -> String {
    let sample = if is_sample { "sample-" } else { "" };
    format!("{sample}{PREFIX}{image}@{}@{cpus}@{backend}", mode.word())
}

/// The page, from the lines in `results`.
///
/// # Errors
///
/// If there are no lines, or the lines cannot be read.
pub fn from_results(results: &Path) -> Result<String, LaunchError> {
    let none = || LaunchError::NoResults {
        path: results.to_owned(),
    };
    let mut cells = Vec::new();
    for entry in fs::read_dir(results).map_err(|_| none())?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = name
            .strip_suffix(".jsonl")
            .and_then(|name| name.strip_prefix(PREFIX))
        else {
            continue;
        };
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let image = name.split('@').next().unwrap_or_default();
        cells.push(Cell::read(image, &text));
    }
    cells.retain(|cell| cell.plan.is_some());
    match cells.is_empty() {
        true => Err(none()),
        false => Ok(page(&cells)),
    }
}

impl Cell {
    fn read(image: &str, text: &str) -> Self {
        let mut cell = Self {
            image: image.to_owned(),
            ..Self::default()
        };
        for line in text.lines().filter_map(Line::find) {
            match line {
                Line::Run {
                    backend,
                    date,
                    host,
                    versions,
                } => {
                    cell.backend = Some(backend);
                    (cell.date, cell.host) = (date, [vec![host], versions].concat().join("; "));
                    // The launch repeats the findings of earlier launches, unless the launch ends before.
                    (cell.batches, cell.findings) = (0, Vec::new());
                    (cell.sum, cell.cannot) = (None, None);
                }
                Line::Sweep(Step::Plan(plan)) => cell.plan = Some(plan),
                Line::Sweep(Step::Cannot { reason }) => cell.cannot = Some(reason),
                Line::Sweep(Step::Found(found)) => cell.findings.push(found),
                Line::Sweep(Step::Batch { number, .. }) => cell.batches = number,
                Line::Sweep(Step::Sum(sum)) => cell.sum = Some(sum),
                _ => (),
            }
        }
        cell
    }

    /// The row of the table.
    fn row(&self) -> Option<Row> {
        let plan = self.plan.as_ref()?;
        Some(Row {
            mode: plan.mode,
            cpus: plan.cpus,
            backend: self.backend?,
        })
    }

    fn text(&self) -> String {
        let Some(plan) = &self.plan else {
            return "not run".to_owned();
        };
        if self.cannot.is_some() {
            return "cannot".to_owned();
        }
        let findings = self.findings();
        let count = |harm: bool| -> usize {
            let of = findings.iter().filter(|found| found.kind.is_harm() == harm);
            of.map(|found| found.harmed()).sum()
        };
        let harmed = match count(true) {
            0 => "0 harmed".to_owned(),
            harmed => format!("**{harmed} harmed**"),
        };
        let slow = match count(false) {
            0 => String::new(),
            slow => format!(", {slow} too slow"),
        };
        match &self.sum {
            Some(sum) => format!("{} probed, {harmed}{slow}", grouped(sum.tally.probed)),
            None => format!(
                "unfinished: {} of {} batches, {harmed}{slow} so far",
                self.batches, plan.batches
            ),
        }
    }

    fn findings(&self) -> &[Finding] {
        self.sum
            .as_ref()
            .map_or(&self.findings, |sum| &sum.findings)
    }
}

impl Finding {
    /// The number of harmed functions: a set that fails together, or by chance, counts as one function.
    fn harmed(&self) -> usize {
        match self.kind {
            FindingKind::HarmfulTogether | FindingKind::HarmfulAtTimes => 1,
            FindingKind::Harmful | FindingKind::TooSlow => self.functions.len(),
        }
    }

    fn named(&self) -> String {
        let names: Vec<String> = self
            .functions
            .iter()
            .take(NAMES)
            .map(|name| format!("`{name}`"))
            .collect();
        let more = match self.functions.len().saturating_sub(NAMES) {
            0 => String::new(),
            more => format!(" and {more} others"),
        };
        let kind = match self.kind {
            FindingKind::Harmful => "",
            FindingKind::HarmfulTogether => ", only together",
            FindingKind::HarmfulAtTimes => ", not each time",
            FindingKind::TooSlow => ", too slow",
        };
        format!("{}{more}{kind}", names.join(", "))
    }
}

/// The key of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    mode: Mode,
    cpus: u8,
    backend: Backend,
}

fn page(cells: &[Cell]) -> String {
    let mut text = String::from(
        "# Every function of a kernel, probed\n\n\
         `make sweep` and `rig sweep-page --write` wrote this page from the last sweep of each kernel and mode; see\n\
         [rigs.md](rigs.md) for what a sweep is. Do not edit it.\n\n\
         * **probed**: functions whose probe was armed in a boot that the guest did not notice.\n\
         * **harmed**: functions with whose probe the guest does not boot as it does without, or a count is wrong.\n\
         * **too slow**: a boot with this probe alone does not end in time, though it goes on.\n\
         * **cannot**: the KVM does not deliver what the mode needs; the reason is below.\n\n",
    );
    text.push_str(&table(cells));
    section(&mut text, "Modes", &modes());
    section(
        &mut text,
        "Harmed functions, and those too slow to judge",
        &findings(cells),
    );
    section(&mut text, "Not probed, by reason", &refused(cells));
    section(&mut text, "Each run", &runs(cells));
    section(&mut text, "Cannot", &cannot(cells));
    text
}

fn section(text: &mut String, title: &str, list: &str) {
    let _ = write!(text, "\n## {title}\n\n");
    text.push_str(if list.is_empty() { "None.\n" } else { list });
}

fn table(cells: &[Cell]) -> String {
    let mut by_row: BTreeMap<Row, BTreeMap<&str, &Cell>> = BTreeMap::new();
    for mode in Mode::ALL {
        by_row
            .entry(Row {
                mode: *mode,
                cpus: mode.cpus(),
                backend: Backend::Nested,
            })
            .or_default();
    }
    for cell in cells {
        if let Some(row) = cell.row() {
            by_row.entry(row).or_default().insert(&cell.image, cell);
        }
    }
    let mut text = String::from("| mode | vCPUs | on |");
    for kernel in KERNELS {
        let _ = write!(text, " {kernel} |");
    }
    text.push_str("\n|---|---|---|---|---|---|---|---|---|\n");
    for (row, cells) in by_row {
        let _ = write!(
            text,
            "| {} | {} | {} |",
            row.mode.word(),
            row.cpus,
            row.backend
        );
        for kernel in KERNELS {
            let cell = cells
                .get(kernel)
                .map_or("not run".to_owned(), |cell| cell.text());
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text
}

fn modes() -> String {
    Mode::ALL.iter().fold(String::new(), |mut text, mode| {
        let _ = writeln!(text, "* `{}`: {}", mode.word(), mode.help());
        text
    })
}

fn title(cell: &Cell) -> Option<String> {
    let row = cell.row()?;
    Some(format!(
        "{}, `{}`, {} vCPUs, {}",
        cell.image,
        row.mode.word(),
        row.cpus,
        row.backend
    ))
}

fn findings(cells: &[Cell]) -> String {
    let mut text = String::new();
    for (title, cell) in titled(cells) {
        for found in cell.findings() {
            let reason = found.reason.replace(['\n', '\r'], " ");
            let _ = writeln!(text, "* {title}: {}: {reason}", found.named());
        }
    }
    text
}

fn refused(cells: &[Cell]) -> String {
    let mut text = String::new();
    for (title, cell) in titled(cells) {
        let Some(sum) = &cell.sum else { continue };
        for (reason, count) in &sum.tally.refused {
            let _ = writeln!(text, "* {title}: {count}: {reason}");
        }
    }
    text
}

fn runs(cells: &[Cell]) -> String {
    let mut text = String::new();
    for (title, cell) in titled(cells) {
        let Some(plan) = &cell.plan else { continue };
        let _ = write!(
            text,
            "* {title}: {}; seed {}, {} functions in {} batches of {}",
            cell.date,
            plan.seed,
            grouped(plan.functions as u64),
            plan.batches,
            plan.batch
        );
        if !plan.program.is_empty() {
            let _ = write!(text, "; program {}", plan.program);
        }
        if let Some(sum) = &cell.sum {
            let missed: Vec<String> = sum
                .tally
                .missed
                .iter()
                .map(|(why, count)| format!("{count} {why}"))
                .collect();
            let missed = if missed.is_empty() {
                "none".to_owned()
            } else {
                [missed, most_missed(&sum.tally)].concat().join(", ")
            };
            let _ = write!(
                text,
                "; {} boots, {} of them repeats, {} deaths of the Linux around; {} probes disabled for a part of the boot; {} hits with {} exits, \
                 missed: {missed}",
                sum.boots,
                sum.repeats,
                sum.restarts,
                grouped(sum.tally.disabled),
                grouped(sum.tally.hits),
                grouped(sum.tally.exits)
            );
        }
        let _ = writeln!(text, "; on {}", cell.host);
    }
    text
}

/// The functions that missed most.
fn most_missed(tally: &Tally) -> Vec<String> {
    let functions: Vec<String> = tally
        .most_missed
        .iter()
        .map(|by| {
            format!(
                "`{}` {} {} of {} hits",
                by.function,
                grouped(by.missed),
                by.reason,
                grouped(by.hits)
            )
        })
        .collect();
    let is_any = !functions.is_empty();
    let text = || format!("most by {}", functions.join(", "));
    is_any.then(text).into_iter().collect()
}

fn cannot(cells: &[Cell]) -> String {
    let mut text = String::new();
    for (title, cell) in titled(cells) {
        if let Some(reason) = &cell.cannot {
            let _ = writeln!(text, "* {title}: {reason}");
        }
    }
    text
}

fn titled(cells: &[Cell]) -> Vec<(String, &Cell)> {
    let position = |cell: &Cell| KERNELS.iter().position(|kernel| *kernel == cell.image);
    let mut cells: Vec<&Cell> = cells.iter().collect();
    cells.sort_by_key(|cell| (position(cell), cell.image.clone(), cell.row()));
    cells
        .into_iter()
        .filter_map(|cell| Some((title(cell)?, cell)))
        .collect()
}

/// 44 038.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::outcome::MissedBy;

    fn lines(steps: &[Step]) -> String {
        let run = Line::Run {
            backend: Backend::Nested,
            date: "2026-11-22 12:00".to_owned(),
            host: "EPYC".to_owned(),
            versions: vec!["QEMU 10".to_owned()],
        };
        let steps = steps.iter().cloned().map(Line::Sweep);
        let lines = std::iter::once(run).chain(steps);
        lines
            .map(|line| serde_json::to_string(&line).expect("json") + "\n")
            .collect()
    }

    fn plan(mode: Mode) -> Step {
        Step::Plan(Plan {
            mode,
            cpus: mode.cpus(),
            seed: 7,
            batch: 5000,
            functions: 44_000,
            of: 44_038,
            batches: 9,
            refused: BTreeMap::new(),
            program: "ab12".to_owned(),
            guest: "cd34".to_owned(),
        })
    }

    fn found(kind: FindingKind, names: &[&str]) -> Finding {
        Finding {
            kind,
            functions: names.iter().map(|name| (*name).to_owned()).collect(),
            reason: "triple-fault after 2 s".to_owned(),
        }
    }

    fn row<'p>(page: &'p str, mode: &str) -> &'p str {
        let row = format!("| {mode} |");
        page.lines()
            .find(|line| line.starts_with(&row))
            .expect("row")
    }

    #[test]
    fn cell_not_run_or_not_finished_is_marked() {
        let findings = [found(FindingKind::Harmful, &["memset"])];
        let unfinished = [
            plan(Mode::EntryCounted),
            Step::Found(findings[0].clone()),
            Step::Batch { number: 3, of: 9 },
        ];
        let cells = [Cell::read("debian-6.1", &lines(&unfinished))];
        let page = page(&cells);
        let row = row(&page, "entry-counted");
        assert_eq!(row.matches("not run").count(), KERNELS.len() - 1, "{row}");
        assert!(
            row.contains("| unfinished: 3 of 9 batches, **1 harmed** so far |"),
            "{row}"
        );
        assert!(page.contains("`memset`: triple-fault after 2 s"), "{page}");
        for mode in Mode::ALL {
            let name = format!("| {} | {} | nested |", mode.word(), mode.cpus());
            assert!(page.contains(&name), "{name}");
        }
    }

    #[test]
    fn finished_cell_has_its_numbers_and_reasons() {
        let sum = Sum {
            tally: Tally {
                probed: 43_000,
                refused: [("all debug registers are taken".to_owned(), 12)].into(),
                missed: [("abandoned".to_owned(), 1234)].into(),
                most_missed: vec![MissedBy {
                    function: "schedule".to_owned(),
                    reason: "abandoned".to_owned(),
                    missed: 1200,
                    hits: 50_000,
                }],
                ..Tally::default()
            },
            findings: vec![
                found(FindingKind::HarmfulTogether, &["a", "b"]),
                found(FindingKind::TooSlow, &["__x86_return_thunk"]),
            ],
            boots: 20,
            repeats: 2,
            restarts: 1,
        };
        let steps = [plan(Mode::Live), Step::Sum(sum)];
        let page = page(&[Cell::read("debian-6.12", &lines(&steps))]);
        let row = row(&page, "live");
        assert!(
            row.contains("| 43 000 probed, **1 harmed**, 1 too slow |"),
            "{row}"
        );
        assert!(page.contains("`a`, `b`, only together"), "{page}");
        assert!(
            page.contains(": 12: all debug registers are taken"),
            "{page}"
        );
        assert!(page.contains("seed 7"), "{page}");
        assert!(
            page.contains("20 boots, 2 of them repeats, 1 deaths"),
            "{page}"
        );
    }

    #[test]
    fn launch_that_goes_on_does_not_count_twice() {
        let harmful = Step::Found(found(FindingKind::Harmful, &["memset"]));
        let launch = lines(&[plan(Mode::Return), harmful]);
        let cell = Cell::read("debian-6.1", &launch.repeat(2));
        assert_eq!(cell.findings.len(), 1);
        assert!(cell.text().contains("**1 harmed**"));
    }

    #[test]
    fn sum_of_a_launch_before_does_not_count() {
        let before = lines(&[plan(Mode::Return), Step::Sum(Sum::default())]);
        assert!(Cell::read("debian-6.1", &before).sum.is_some());
        let cell = Cell::read("debian-6.1", &(before + &lines(&[])));
        assert!(cell.text().contains("unfinished"), "{}", cell.text());
    }

    #[test]
    fn finding_of_an_unfinished_sweep_is_in_its_cell() {
        let harmful = Step::Found(found(FindingKind::Harmful, &["memset"]));
        let cell = Cell::read("debian-6.1", &lines(&[plan(Mode::Return), harmful]));
        assert!(cell.text().contains("**1 harmed**"));
    }

    #[test]
    fn cannot_is_neither_empty_nor_harmless() {
        let steps = [
            plan(Mode::Int3),
            Step::Cannot {
                reason: "no int3".to_owned(),
            },
        ];
        let page = page(&[Cell::read("debian-6.1", &lines(&steps))]);
        assert!(row(&page, "int3").contains("| cannot |"));
        assert!(page.contains("nested: no int3"), "{page}");
    }
}
