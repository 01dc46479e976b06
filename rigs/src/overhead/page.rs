//! The overhead table, as Markdown, from what the last run of `bench` on each kind of KVM has measured.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::arming::NUMBERS;
use super::stock::{self, TURNS};
use super::words::{ARMING, HITS, INTRODUCTION, RATES, READING, STOCK};
use super::{SPEED, WAYS, Way};
use crate::launch::LaunchError;
use crate::line::{Arming, Backend, Line, Timing};

/// Where the table is kept, from the repository's top.
pub const PAGE: &str = "docs/overhead.md";
/// What the time of others is divided by.
const FLOOR: &str = "floor";

/// What the last run on a kind of KVM has said.
#[derive(Debug, Default)]
struct Measured {
    date: String,
    /// The machine first.
    about: Vec<String>,
    timings: BTreeMap<(String, u8), Timing>,
    armings: BTreeMap<usize, Arming>,
}

type Found = BTreeMap<Backend, Measured>;

/// The page, from what is in `results`.
///
/// # Errors
///
/// There is nothing.
pub fn from_results(results: &Path) -> Result<String, LaunchError> {
    let mut found = Found::new();
    for backend in Backend::ALL {
        let path = results.join(format!("bench-{backend}.jsonl"));
        if let Ok(text) = std::fs::read_to_string(path) {
            found.insert(backend, Measured::read(&text));
        }
    }
    match found.is_empty() {
        true => Err(LaunchError::NoResults {
            path: results.to_owned(),
        }),
        false => Ok(page(&found)),
    }
}

impl Measured {
    /// The last word on a measurement is the one that counts.
    fn read(text: &str) -> Self {
        let mut measured = Self::default();
        for line in text.lines().filter_map(Line::find) {
            match line {
                Line::Run {
                    date,
                    host,
                    versions,
                    ..
                } => {
                    measured.date = date;
                    measured.about = [vec![host], versions].concat();
                }
                Line::Timing(timing) => {
                    let key = (timing.way.clone(), timing.cpus);
                    measured.timings.insert(key, timing);
                }
                Line::Arming(arming) => {
                    measured.armings.insert(arming.probes, arming);
                }
                Line::Host { .. } | Line::Case(_) | Line::End { .. } => (),
            }
        }
        measured
    }

    fn timing(&self, way: &str) -> Option<&Timing> {
        self.timings
            .get(&(way.to_owned(), 1))
            .filter(|timing| !timing.rounds_ns.is_empty())
    }

    /// Nanoseconds that a hit adds to a call: by the median of the rounds, and by their quartiles.
    fn cost(&self, way: &Way) -> Option<[f64; 3]> {
        let timing = self.timing(way.key)?;
        let without = match way.without {
            Some(without) => quantile(&self.timing(without)?.rounds_ns, 0.5),
            None => 0.0,
        };
        let calls = as_float(timing.calls);
        let at = |part| (quantile(&timing.rounds_ns, part) - without) / calls;
        Some([at(0.5), at(0.25), at(0.75)])
    }

    fn ratio(&self, way: &Way) -> Option<f64> {
        let floor = WAYS.iter().find(|way| way.key == FLOOR)?;
        let ([cost, ..], [floor, ..]) = (self.cost(way)?, self.cost(floor)?);
        (way.without.is_some() && floor > 0.0).then_some(cost / floor)
    }

    /// Nanoseconds to what is told: in Bochs nothing but instructions makes time pass.
    fn unit(&self, backend: Backend) -> Option<f64> {
        match backend {
            Backend::Nested | Backend::Local => Some(1.0),
            Backend::Intel | Backend::Amd => {
                let speed = self.timing(SPEED)?;
                Some(quantile(&speed.rounds_ns, 0.5) / as_float(speed.calls))
            }
        }
    }

    /// VM exits a hit, as the engine counted them.
    fn exits(&self, way: &Way) -> Option<f64> {
        let timing = self.timing(way.key)?;
        match way.exits {
            Some(exits) => Some(as_float(exits)),
            None => (timing.hits > 0).then(|| as_float(timing.exits) / as_float(timing.hits)),
        }
    }
}

fn as_float(number: u64) -> f64 {
    // Nanoseconds of hours are held exactly.
    number as f64
}

/// Of `values`, the one that so large a part of them is below.
fn quantile(values: &[u64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    let index = (0..=last)
        .find(|index| *index as f64 >= part * last as f64)
        .unwrap_or(last);
    sorted.get(index).copied().map_or(f64::NAN, as_float)
}

fn page(found: &Found) -> String {
    let mut text = String::from(INTRODUCTION);
    text.push_str("| | when | on |\n|---|---|---|\n");
    for (backend, measured) in found {
        let about = measured.about.join("; ");
        let _ = writeln!(text, "| {backend} | {} | {about} |", measured.date);
    }
    text.push_str(HITS);
    text.push_str(&hits(found));
    text.push_str(STOCK);
    text.push_str(&in_stock(found));
    text.push_str(RATES);
    text.push_str(&rates(found));
    text.push_str(ARMING);
    text.push_str(&armings(found));
    text.push_str("\n## Targets\n\n");
    text.push_str(&targets(found));
    text.push_str(READING);
    text
}

fn hits(found: &Found) -> String {
    let mut text = String::from("| |");
    for backend in found.keys() {
        let _ = write!(text, " {backend} | × floor |");
    }
    text.push_str(" exits | guest instructions |\n|---|");
    text.push_str(&"---:|---:|".repeat(found.len()));
    text.push_str("---:|---:|\n");
    for way in &WAYS {
        let _ = write!(text, "| {} |", way.title);
        for (backend, measured) in found {
            let unit = measured.unit(*backend);
            let cost = measured.cost(way).zip(unit);
            let cost = cost.map(|(cost, unit)| cost.map(|ns| ns / unit));
            let cost = cost.map(|[median, low, high]| {
                format!("{} [{}, {}]", number(median), number(low), number(high))
            });
            let ratio = measured.ratio(way).map(|ratio| format!("{ratio:.2}"));
            let _ = write!(text, " {} | {} |", or_empty(cost), or_empty(ratio));
        }
        let exits = found.values().filter_map(|measured| measured.exits(way));
        let mut exits: Vec<String> = exits.map(|exits| format!("{exits:.2}")).collect();
        exits.dedup();
        let instructions = way
            .instructions
            .map(|instructions| instructions.to_string());
        let _ = writeln!(text, " {} | {} |", exits.join(", "), or_empty(instructions));
    }
    text
}

/// Calls of a system call in a stock guest, where that was run.
fn in_stock(found: &Found) -> String {
    let mut text = String::from(
        "| | |  a call, ns | what the probe adds, ns | exits |\n|---|---|---:|---:|---:|\n",
    );
    for (backend, measured) in found {
        let without = measured.timing(TURNS[0].0);
        for (key, title) in TURNS {
            let (Some(timing), Some(without)) = (measured.timing(key), without) else {
                continue;
            };
            let calls = as_float(timing.calls);
            let [median, low, high] =
                [0.5, 0.25, 0.75].map(|part| quantile(&timing.rounds_ns, part) / calls);
            let added = median - quantile(&without.rounds_ns, 0.5) / as_float(without.calls);
            let exits = (timing.hits > 0)
                .then(|| format!("{:.2}", as_float(timing.exits) / as_float(timing.hits)));
            let _ = writeln!(
                text,
                "| {backend}, {} | {title} | {} [{}, {}] | {} | {} |",
                stock::NAME,
                number(median),
                number(low),
                number(high),
                if key.starts_with("stock-none") {
                    String::new()
                } else {
                    number(added)
                },
                or_empty(exits),
            );
        }
    }
    text
}

fn rates(found: &Found) -> String {
    let mut text =
        String::from("| | 1 vCPU | best | 2 vCPUs | best |\n|---|---:|---:|---:|---:|\n");
    for (backend, measured) in found {
        let _ = write!(text, "| {backend} |");
        let unit = measured.unit(*backend);
        let rate = |cpus: u8, part| {
            let timing = measured.timings.get(&("rate".to_owned(), cpus))?;
            let hits = as_float(timing.calls) * f64::from(cpus);
            Some(hits * 1e9 / quantile(&timing.rounds_ns, part) * unit?)
        };
        for cpus in [1, 2] {
            for part in [0.5, 0.0] {
                let _ = write!(text, " {} |", or_empty(rate(cpus, part).map(number)));
            }
        }
        let scale = rate(2, 0.0).zip(rate(1, 0.0));
        let scale = scale.map(|(two, one)| format!("{:.2}", two / one));
        let _ = write!(text, " {} |", or_empty(scale));
        text.push('\n');
    }
    text
}

fn armings(found: &Found) -> String {
    let mut text = String::from(
        "| | probes | looked up | planted | removed | memory, bytes a probe |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for (backend, measured) in found {
        for arming in measured.armings.values() {
            let milliseconds = |values: &[u64]| format!("{:.2}", quantile(values, 0.5) / 1e6);
            // With few, it is the allocator's granularity that one would see.
            let largest = NUMBERS.iter().max() == Some(&arming.probes);
            let bytes =
                largest.then(|| number(as_float(arming.resident_bytes / arming.probes as u64)));
            let _ = writeln!(
                text,
                "| {backend} | {} | {} | {} | {} | {} |",
                number(as_float(arming.probes as u64)),
                milliseconds(&arming.prepared_ns),
                milliseconds(&arming.armed_ns),
                milliseconds(&arming.removed_ns),
                or_empty(bytes),
            );
        }
    }
    text
}

/// What was to be reached, and what was.
fn targets(found: &Found) -> String {
    let mut text = String::from("| |");
    for backend in found.keys() {
        let _ = write!(text, " {backend} |");
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(found.len()));
    text.push('\n');
    for (title, key, most) in [
        ("k ≤ 1.3 × floor", "counted", 1.3),
        ("r ≤ 2.5 × floor", "returns", 2.5),
    ] {
        let _ = write!(text, "| {title} |");
        let way = WAYS.iter().find(|way| way.key == key);
        for measured in found.values() {
            let ratio = way.and_then(|way| measured.ratio(way));
            let _ = write!(
                text,
                " {} |",
                or_empty(ratio.map(|ratio| verdict(ratio, most)))
            );
        }
        text.push('\n');
    }
    let most = NUMBERS.iter().max().copied().unwrap_or(0);
    let _ = write!(
        text,
        "| {} probes planted in less than 1 s |",
        number(as_float(most as u64))
    );
    for measured in found.values() {
        let arming = measured.armings.get(&most);
        let seconds = arming.map(|arming| quantile(&arming.armed_ns, 0.5) / 1e9);
        let _ = write!(
            text,
            " {} |",
            or_empty(seconds.map(|seconds| verdict(seconds, 1.0)))
        );
    }
    text.push('\n');
    text
}

fn verdict(reached: f64, most: f64) -> String {
    match reached <= most {
        true => format!("yes: {reached:.2}"),
        false => format!("**no**: {reached:.2}"),
    }
}

fn or_empty(cell: Option<String>) -> String {
    cell.unwrap_or_default()
}

/// A whole number, its thousands set off.
fn number(value: f64) -> String {
    let plain = format!("{value:.0}");
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", &*plain),
    };
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .filter_map(|group| std::str::from_utf8(group).ok())
        .collect();
    format!("{sign}{}", groups.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(way: &str, rounds_ns: &[u64], hits: u64, exits: u64) -> String {
        let timing = Line::Timing(Timing {
            backend: Backend::Local,
            guest: "test".to_owned(),
            way: way.to_owned(),
            cpus: 1,
            calls: 10,
            rounds_ns: rounds_ns.to_vec(),
            hits,
            exits,
        });
        serde_json::to_string(&timing).expect("json")
    }

    fn cells<'a>(page: &'a str, title: &str) -> Vec<&'a str> {
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {title}")));
        row.expect(title).split('|').map(str::trim).collect()
    }

    #[test]
    fn what_a_call_takes_without_the_probe_is_taken_off() {
        let text = [
            line("entry", &[400, 500, 9000], 0, 0),
            line("floor", &[10_500, 10_400, 99_000], 0, 0),
            line("counted", &[1, 2, 3], 10, 10),
            // The last word.
            line("counted", &[12_500, 12_400, 99_000], 10, 10),
            line("returns", &[50_500, 50_400, 99_000], 10, 20),
        ]
        .join("\n");
        let page = page(&Found::from([(Backend::Local, Measured::read(&text))]));
        assert_eq!(cells(&page, "floor")[3..6], ["1.00", "1.00", "1"]);
        assert_eq!(
            cells(&page, "k: kprobe, counted")[3..6],
            ["1.20", "1.00", "1"]
        );
        let counted = cells(&page, "k: kprobe, counted")[2];
        assert!(counted.starts_with("1 200 ["), "{counted}");
        assert_eq!(
            cells(&page, "r: return probe, counted")[3..6],
            ["5.00", "2.00", "2"]
        );
        // Not measured: no cell is made up.
        assert_eq!(cells(&page, "b: kprobe")[2..5], ["", "", ""]);
        assert_eq!(cells(&page, "k ≤ 1.3")[2], "yes: 1.20");
        assert_eq!(cells(&page, "r ≤ 2.5")[2], "**no**: 5.00");
    }

    #[test]
    fn thousands_are_set_off() {
        let numbers = [0.0, 7.4, 999.6, 12_345.0, 1_234_567.0, -4321.0].map(number);
        assert_eq!(
            numbers,
            ["0", "7", "1 000", "12 345", "1 234 567", "-4 321"]
        );
    }
}
